"""What a chat template can show, found by rendering tiny conversations: never by a look at its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from .messages import Message
from .tools.tool_format import ToolFormat
from .turns import TurnForm, TurnKind, reformed

Takes = Callable[[Sequence[Message], bool], bool]
"""Whether a prompt shows every message of a conversation and, where the flag is set, the tools."""

_SYSTEM, _DEVELOPER, _USER, _ASSISTANT, _RESULT, _FUNCTION = (
    {"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant", "tool", "function")
)
_PLAIN = [
    TurnForm(ids=ids, named_results=named, null_content=null)
    for null in (False, True)
    for ids in ("", "short", "named")
    for named in (False, True)
]
_AS_TEXT = (TurnForm(calls_as_text=True), TurnForm(calls_as_text=True, results_as_user=True))


class Abilities:
    """One template's. Each is found when it is first asked for, and kept."""

    def __init__(self, takes: Takes, style: ToolFormat) -> None:
        """style: how calls are written as text."""
        self._takes = takes
        self._style = style
        self._forms: dict[TurnKind, TurnForm] = {}

    @cached_property
    def shows_tools(self) -> bool:
        return self._takes([_USER], True) and (not self.system or self._takes([_SYSTEM, _USER], True))

    @cached_property
    def system(self) -> bool:
        """A system message at the start."""
        return self._all([_SYSTEM, _USER], [_SYSTEM, _USER, _ASSISTANT, _USER])

    @cached_property
    def several_systems(self) -> bool:
        """More than one at the start."""
        return self._all([_SYSTEM, _SYSTEM, _USER])

    @cached_property
    def late_system(self) -> bool:
        """A system message later on."""
        late = [_USER, _ASSISTANT, _SYSTEM, _USER]
        return self._all(late, [_SYSTEM, *late] if self.system else late)

    @cached_property
    def developer(self) -> bool:
        """A developer's message at the start."""
        return self._all([_DEVELOPER, _USER], [_DEVELOPER, _USER, _ASSISTANT, _USER])

    @cached_property
    def late_developer(self) -> bool:
        return self._all([_USER, _ASSISTANT, _DEVELOPER, _USER], [_SYSTEM, _DEVELOPER, _USER])

    @cached_property
    def several_users(self) -> bool:
        """Messages of users in a row."""
        return self._all([_USER, _USER], [_USER, _USER, _ASSISTANT, _USER, _USER])

    @cached_property
    def several_assistants(self) -> bool:
        return self._all([_USER, _ASSISTANT, _ASSISTANT, _USER])

    @cached_property
    def assistant_first(self) -> bool:
        return self._all([_ASSISTANT, _USER], [_ASSISTANT, _USER, _ASSISTANT, _USER])

    @cached_property
    def no_user(self) -> bool:
        """A conversation without a user's message."""
        return self._all([_ASSISTANT], [_SYSTEM] if self.system else [_ASSISTANT])

    @cached_property
    def function_role(self) -> bool:
        """The older role of a tool's result."""
        return self._all([_USER, _ASSISTANT, _FUNCTION, _ASSISTANT, _USER])

    @cached_property
    def lone_results(self) -> bool:
        """A tool's result without a call before it."""
        return self._all([_USER, _ASSISTANT, _RESULT, _ASSISTANT, _USER], [_USER, _RESULT])

    def turn_form(self, kind: TurnKind) -> TurnForm:
        """The form of such turns that is nearest to the conversation's own."""
        if kind not in self._forms:
            found = (form for form in self._candidates(kind) if self._shows(form, kind))
            self._forms[kind] = next(found, _AS_TEXT[-1])
        return self._forms[kind]

    def _candidates(self, kind: TurnKind) -> list[TurnForm]:
        if kind == TurnKind():
            return [*_PLAIN, *_AS_TEXT]
        plain = self.turn_form(TurnKind())
        if plain.calls_as_text:
            return list(_AS_TEXT)
        layouts = [(apart, one) for one in sorted({False, kind.several}) for apart in sorted({False, kind.content})]
        return [*(replace(plain, content_apart=apart, one_call=one) for apart, one in layouts), *_AS_TEXT]

    def _shows(self, form: TurnForm, kind: TurnKind) -> bool:
        turn = reformed(_turn(kind), form, self._style)
        start = [_USER, *turn]
        if kind.user_next:
            return self._all([*start, _USER], [*start, _USER, _ASSISTANT, _USER])
        return self._all(start, [*start, _ASSISTANT, _USER], [*start, *turn, _ASSISTANT])

    def _all(self, *conversations: Sequence[Message]) -> bool:
        return all(self._takes(each, False) for each in conversations)


def _turn(kind: TurnKind) -> list[Message]:
    """A turn as clients send it, with ids that no template asks for by itself."""
    ids = ["call_Zk3vWq8mRt5x", "call_Bn7yLp2cHd9s"][: 1 + kind.several]
    arguments = '{"q": "x' if kind.broken else {"q": "x"}
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": arguments}} for each in ids]
    message = {"role": "assistant", "content": "x" if kind.content else "", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": each, "content": "x"} for each in ids]
    return [message] if kind.unanswered else [message, *results]
