"""What a model's chat template puts around messages, learned by letting it render marks in place of their contents.

So a state can be sent as it is, token ids among text, and still be what the template would have made of it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...managers.front.requests.render import Rendering
from ...managers.wire.errors import InvalidRequest
from ..history import History, Segment
from ..ir import Role, RoleBegin, RoleEnd

Render = Callable[[list[dict[str, Any]], bool], Awaitable[Rendering]]
"""(messages, add_generation_prompt) to what the template makes of them."""

_MOST_SHAPES = 4096  # conversations of different shapes whose pieces are remembered


@dataclass(frozen=True)
class Shapes:
    """What is known of a template already. mark: stands for contents, with a number."""

    mark: str = field(default_factory=lambda: f"Sap{secrets.token_hex(8)}x")
    pieces: dict[tuple[tuple[Role, ...], bool], list[Segment]] = field(default_factory=dict)


class ChatPieces:
    """The pieces of one model's template. A piece depends on the roles of the messages before and after it only.

    Where a model begins an assistant's message, the template's generation prompt precedes it, also once the message has
    ended: the model saw that, and what was sent once must not change. Where a text begins it, what precedes it is what
    the template puts there in a whole conversation.
    """

    def __init__(self, render: Render, shapes: Shapes) -> None:
        """shapes: filled here; may be shared by all pieces of one template."""
        self._render = render
        self._mark = shapes.mark
        self._known = shapes.pieces

    async def prompt(self, history: History) -> list[Segment]:
        """The history with the template's pieces in place of the roles' edges.

        Raises InvalidRequest where the template refuses such a conversation, or allows no text between its messages.
        """
        roles: tuple[Role, ...] = tuple(part.role for part in history if isinstance(part, RoleBegin))
        before = await self._before(roles, _begun_by_model(history))
        segments: list[Segment] = []
        begun, ended, outside = 0, False, False  # ended: and nothing of what follows the message is there yet
        for part in history:
            if isinstance(part, RoleBegin):
                piece = before[begun]
                if outside and begun:
                    piece = _without(await self._after(roles[:begun]), piece)
                segments.append(piece)
                begun, ended, outside = begun + 1, False, False
            elif isinstance(part, Segment):
                if ended:
                    segments.append(await self._after(roles[:begun]))
                    ended, outside = False, True
                segments.append(part)
            else:
                ended = True
        if ended:
            segments.append(await self._after(roles))
        return segments

    async def _before(self, roles: tuple[Role, ...], by_model: list[bool]) -> list[Segment]:
        """For every message what stands between the content before it (or the start) and its own."""
        if not roles:
            return []
        opened = [k for k, role in enumerate(roles) if k and role == "assistant" and by_model[k]]
        if opened and opened[-1] == len(roles) - 1:
            return [*await self._before(roles[:-1], by_model), await self._generation_prompt(roles[:-1])]
        pieces = (await self._pieces(roles, False))[:-1]
        for k in opened:
            pieces[k] = await self._generation_prompt(roles[:k])
        return pieces

    async def _generation_prompt(self, roles: tuple[Role, ...]) -> Segment:
        return (await self._pieces(roles, True))[-1]

    async def _after(self, roles: tuple[Role, ...]) -> Segment:
        """What stands after the last message's content, with nothing to follow."""
        return (await self._pieces(roles, False))[-1]

    async def _pieces(self, roles: tuple[Role, ...], opens: bool) -> list[Segment]:
        """The template's own text around the contents of messages with these roles: one piece more than messages."""
        found = self._known.get((roles, opens))
        if found is None:
            marks = [f"{self._mark}{i}x" for i in range(len(roles))]
            messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks)]
            found = _split(await self._render(messages, opens), marks)
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            self._known[(roles, opens)] = found
        return list(found)


def _begun_by_model(history: History) -> list[bool]:
    """For every message, whether a model says the first of it; so it is going to where there is nothing yet."""
    begun: list[bool] = []
    is_first = False
    for part in history:
        if isinstance(part, RoleBegin):
            begun.append(True)
            is_first = True
        elif isinstance(part, Segment) and is_first:
            begun[-1] = part.generated
            is_first = False
        elif isinstance(part, RoleEnd):
            is_first = False
    return begun


@dataclass
class _OpenSegment:
    runs: list[str | list[int]]
    text: str = ""

    def segment(self) -> Segment:
        return Segment(tuple(self.runs), self.text)


def _split(rendering: Rendering, marks: Sequence[str]) -> list[Segment]:
    """The rendering without the marks, cut there. Raises InvalidRequest where they are not all there, in order."""
    pieces = [_OpenSegment([])]
    seen = []
    between = re.compile("(" + "|".join(map(re.escape, marks)) + ")")
    for run in rendering.prompt:
        if isinstance(run, list):
            pieces[-1].runs.append(run)
            continue
        for i, text in enumerate(between.split(run)):
            if i % 2:
                seen.append(text)
                pieces.append(_OpenSegment([]))
            elif text:
                pieces[-1].runs.append(text)
    if seen != list(marks):
        text = "The model's chat template does not show these messages one after the other, each once"
        raise InvalidRequest(f"{text}; programs cannot use their roles.", "messages")
    for piece, text in zip(pieces, re.split("|".join(map(re.escape, marks)), rendering.text)):
        piece.text = text
    return [piece.segment() for piece in pieces]


def _without(head: Segment, whole: Segment) -> Segment:
    """`whole` without `head`, with which it must begin."""
    runs = list(whole.runs)
    for i, run in enumerate(head.runs):
        mine = runs.pop(0) if runs else ""
        if mine == run:
            continue
        if not (isinstance(run, str) and isinstance(mine, str) and mine.startswith(run) and i == len(head.runs) - 1):
            text = "The model's chat template has no place for text between messages; put it into one of them."
            raise InvalidRequest(text, "messages")
        runs.insert(0, mine[len(run) :])
    return Segment(tuple(runs), whole.text[len(head.text) :])
