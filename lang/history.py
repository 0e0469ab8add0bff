"""A program's state as a backend gets it: segments of it, with the edges of messages in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .ir import Role, RoleBegin, RoleEnd


@dataclass(frozen=True)
class Segment:
    """A stretch of a state. runs: text, and ids of tokens as they were generated; text: all of it as text.

    generated: a model said, or chose, this in the place where it stands.
    """

    runs: tuple[str | list[int], ...]
    text: str
    generated: bool = False

    @classmethod
    def of(cls, text: str) -> Segment:
        """Text that no model wrote."""
        return cls((text,), text)


History = list[Segment | RoleBegin | RoleEnd]


@dataclass
class HistoryMessage:
    """A message of a conversation; `closed` once its role has ended."""

    role: Role
    content: str
    closed: bool


def messages_of(history: Iterable[Segment | RoleBegin | RoleEnd]) -> tuple[list[HistoryMessage], str]:
    """The messages of a state, and the text that stands outside of them."""
    messages: list[HistoryMessage] = []
    outside = ""
    for part in history:
        if isinstance(part, RoleBegin):
            messages.append(HistoryMessage(part.role, "", closed=False))
        elif isinstance(part, RoleEnd):
            messages[-1].closed = True
        elif messages and not messages[-1].closed:
            messages[-1].content += part.text
        else:
            outside += part.text
    return messages, outside


def plain_text(history: Iterable[Segment | RoleBegin | RoleEnd]) -> str:
    """The state as text for people, where no chat template is known: each message after its role's name."""
    text = ""
    for part in history:
        if isinstance(part, RoleBegin):
            text += f"{part.role}: "
        elif isinstance(part, RoleEnd):
            text += "\n"
        else:
            text += part.text
    return text
