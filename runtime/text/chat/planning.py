"""How conversations are folded so that one chat template shows them whole: tried out, and kept by their shape.

What is tried out are copies without any of the texts, within limits of time of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import TemplateError
from ..thoughts.template_reasoning import TemplateReasoning
from ..tokenizers.base import Tokenizer
from .abilities import Abilities
from .folding import Conversation, completed_tools, flattened, folded
from .messages import Message, Tools
from .own_text import OwnText
from .template import ChatTemplate
from .tools.shown_tools import with_tools_shown
from .tools.tool_format import ToolFormat
from .traces import TOOL_MARK, first_untraced, marked, marked_tools, shortened

PLANNING_SECONDS = 2.0
_PROBING_SECONDS = 0.2
_MOST_PLANS = 512
_MOST_KWARGS = 8
_LONGEST_PLAN = 1 << 16

Fold = Callable[[Sequence[Message], Tools | None], Conversation]


class Planner:
    """Finds how conversations have to be folded for one template, and remembers it by their shape.

    no_tools: what `tools` is without tools; some templates ask for a list.
    """

    def __init__(self, template: ChatTemplate, style: ToolFormat, reasoning: str, tokenizer: Tokenizer) -> None:
        """style: how calls are written as text. reasoning: the name of how thinking is marked, or "auto"."""
        self.template = template
        self.reasoning = TemplateReasoning(reasoning, template.words, template.variables, tokenizer, self._tried)
        self._style = style
        self._knows_developer = template.names_role("developer")
        self._plans: dict[str, Fold] = {}
        self._abilities: dict[str, Abilities] = {}
        self._deadline = 0.0
        self._knows_data = False
        self.no_tools: Tools | None = None

    def _tried(self, messages: Sequence[Message], opens: bool, kwargs: Mapping[str, Any]) -> OwnText:
        """The text of a tiny conversation."""
        deadline = time.monotonic() + _PROBING_SECONDS
        return self.template.text(messages, self.no_tools, opens, False, kwargs, deadline=deadline)

    def own_roles(self, messages: Sequence[Message]) -> list[Message]:
        """`developer` is the newer name of `system`: a template that does not know it sees the older one."""
        if self._knows_developer:
            return list(messages)
        return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]

    def fold(self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], *, opens: bool) -> Fold:
        """What makes of the conversation one that the template shows whole. Raises TemplateError if nothing does."""
        self._deadline = time.monotonic() + PLANNING_SECONDS
        short = shortened(messages)
        copies, _ = marked(short)
        key = _written([copies, bool(tools), kwargs, opens])
        fold = self._plans.get(key)
        if fold is None:
            fold = self._found(self.own_roles(short), tools, kwargs, opens)
            if fold is None:
                reason = self._complaint(self.own_roles(messages), tools, kwargs, opens)
                raise reason or TemplateError("the chat template does not show this conversation whole")
            if len(key) <= _LONGEST_PLAN:
                _put(self._plans, key, fold, _MOST_PLANS)
        return fold

    def ways_around(
        self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], *, opens: bool
    ) -> Iterator[Conversation]:
        """Other forms of a conversation that the template shows, for one whose tools or calls it cannot cope with:
        nothing is missing from the tools; they are text; so are calls and results."""
        messages = self.own_roles(messages)
        if tools:
            complete = completed_tools(tools)
            yield self.fold(messages, tools, kwargs, opens=opens)(messages, complete)
            listed = with_tools_shown(self._style, messages, tools, "tool_calls")
            yield self.fold(listed, None, kwargs, opens=opens)(listed, None)
        for keep_system in (True, False):
            flat = flattened(messages, tools, self._style, keep_system=keep_system)
            if self._complaint(*flat, kwargs, opens) is None:
                yield flat

    def _found(
        self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], opens: bool
    ) -> Fold | None:
        complaint = self._complaint(messages, tools, kwargs, opens)
        if complaint is not None and not self._knows_data:
            self._find_data(kwargs)
            complaint = self._complaint(messages, tools, kwargs, opens)
        if complaint is None:
            return _as_it_is
        can = self._can(kwargs)
        ways: list[Fold] = [
            lambda messages, tools: folded(messages, tools, can, self._style),
            lambda messages, tools: folded(messages, tools, can, self._style, keep_system=False),
            lambda messages, tools: flattened(messages, tools, self._style, keep_system=True),
            lambda messages, tools: flattened(messages, tools, self._style, keep_system=False),
        ]
        for way in ways:
            if self._complaint(*way(messages, tools), kwargs, opens) is None:
                return way
        return None

    def _find_data(self, kwargs: dict[str, Any]) -> None:
        """In what form the template wants its data: the first in which it shows the simplest conversation there is."""
        self._knows_data = True
        forms: list[tuple[bool, Tools | None]] = [(False, None), (False, []), (True, None), (True, [])]
        for form in [*forms, forms[0]]:
            self.template.typed_contents, self.no_tools = form
            if self._complaint([{"role": "user", "content": "x"}], None, kwargs, opens=True) is None:
                break

    def _can(self, kwargs: dict[str, Any]) -> Abilities:
        key = _written(kwargs)
        if key not in self._abilities:
            abilities = Abilities(lambda messages, tools: self._takes(messages, tools, kwargs), self._style)
            _put(self._abilities, key, abilities, _MOST_KWARGS)
        return self._abilities[key]

    def _takes(self, messages: Sequence[Message], with_tools: bool, kwargs: dict[str, Any]) -> bool:
        return self._complaint(messages, [{}] if with_tools else None, kwargs, opens=True) is None

    def _complaint(
        self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], opens: bool
    ) -> TemplateError | None:
        """Why a conversation of this shape cannot be given to the template as it is. Its texts do not matter."""
        if time.monotonic() > self._deadline:
            raise TemplateError(f"the chat template is too slow: {PLANNING_SECONDS:g} seconds did not do to try it out")
        copies, marks = marked(messages)
        try:
            text = self.template.text(
                copies, marked_tools(tools) or self.no_tools, opens, False, kwargs, deadline=self._deadline
            )
        except TemplateError as error:
            return error
        i = first_untraced(text, marks)
        if i is not None:
            role = messages[i]["role"]
            return TemplateError(f"messages[{i}], of role {role!r}, is left out by the chat template", ("messages", i))
        if tools and TOOL_MARK not in text:
            return TemplateError("the chat template leaves out the tools", ("tools",))
        return None


def _as_it_is(messages: Sequence[Message], tools: Tools | None) -> Conversation:
    return list(messages), tools


def _written(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, sort_keys=True)
    except (RecursionError, TypeError, ValueError) as error:
        raise TemplateError(f"the conversation is not plain JSON data: {error}") from error


def _put(kept: dict[str, Any], key: str, value: Any, most: int) -> None:
    """Into a dict that forgets what has been in it longest."""
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
