"""How a chat template deals with thinking: its variables for it, where it lets a completion begin, and what it does
with the thinking of earlier turns. Found by rendering tiny conversations, not by a look at its source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from ...errors import TemplateError
from ..chat.own_text import OwnText, plain
from ..tokenizers.base import Tokenizer
from .marks import Begins, ReasoningFormat, reasoning_format
from .thought_parser import SPACE

Message = dict[str, Any]
Kwargs = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool, Kwargs], OwnText]
"""The text of a conversation; the flag: with the assistant's turn opened at its end. Raises TemplateError."""

_SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("reasoning", True, False),
    ("thinking_option", "on", "off"),
    ("thinking_mode", "enabled", "disabled"),
)
_OFF_VALUES = (("thinking_budget", 0), ("reasoning_effort", "none"), ("reasoning_effort", "no_think"))
_EFFORTS = ("reasoning_effort", "thinking_effort")
_BUDGET = "thinking_budget"
FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")
"""What templates, and clients, call the thinking of an assistant's message."""
_THOUGHT, _ANSWER = "7409182653111", "7409182653222"
_USER = {"role": "user", "content": "x"}


class TemplateReasoning:
    """One template's. Each is found when it is first asked for, and kept."""

    def __init__(
        self, wanted: str, words: Collection[str], variables: Collection[str], tokenizer: Tokenizer, render: Render
    ) -> None:
        """wanted: the name of the marks. words, variables: the texts that the template contains, the names it reads."""
        self._wanted = wanted
        self._words = words
        self._variables = variables
        self._tokenizer = tokenizer
        self._render = render

    @cached_property
    def marks(self) -> ReasoningFormat | None:
        """The texts around the thinking; see `marks.reasoning_format`."""
        shown = self._with_thought(self.field) if self._wanted == "auto" and self.field is not None else None
        return reasoning_format(self._wanted, [*self._words, plain(shown or "")], self._tokenizer)

    def begins(self, text: OwnText) -> Begins:
        """Where a completion of this prompt begins: only marks that are the template's own count."""
        if self.marks is None:
            return "answer"
        end = len(text.rstrip(SPACE))
        marks: tuple[tuple[str, Begins], ...] = ((self.marks.closing, "answer"), (self.marks.opening, "inside"))
        for mark, begins in marks:
            mark = mark.rstrip(SPACE)
            start = end - len(mark)
            if start >= 0 and text.startswith(mark, start) and 0 not in text.own_mask[start:end]:
                return begins
        return "unknown"

    def continued(self, content: str, text: OwnText) -> Begins:
        """Where a completion begins that goes on with a message of this content."""
        if self.marks is None or not content.strip(SPACE):
            return self.begins(text)
        return "inside" if content.rfind(self.marks.opening) > content.rfind(self.marks.closing) else "answer"

    def reads(self, name: str) -> bool:
        """Whether the template has a variable of this name."""
        return name in self._variables

    @property
    def takes_effort(self) -> bool:
        """Whether a variable of the template says how hard to think."""
        return any(each in self._variables for each in _EFFORTS)

    @property
    def takes_switch(self) -> bool:
        """Whether one says whether to think."""
        return self.off is not None or self.on is not None

    @cached_property
    def on(self) -> dict[str, Any] | None:
        """The variables that let the model think; None where the template has none for that."""
        for name, value, other in _SWITCHES:
            if name in self._variables and self._shown({name: value}) != self._shown({name: other}):
                return {name: value}
        return None

    @cached_property
    def off(self) -> dict[str, Any] | None:
        """The variables that keep it from thinking."""
        for name, other, value in _SWITCHES:
            if name in self._variables and self._shown({name: value}) != self._shown({name: other}):
                return {name: value}
        for name, value in _OFF_VALUES:
            text = self._shown({name: value}) if name in self._variables and self.marks is not None else None
            if text is not None and self.begins(text) == "answer":
                return {name: value}
        return None

    def kwargs(self, *, enabled: bool | None, effort: str, budget: int, given: Kwargs) -> dict[str, Any]:
        """The template's variables with these wishes among them. given: those that the request names; they win.

        enabled: None where nothing was said. effort: "" for none. budget: tokens, or -1.
        """
        made: dict[str, Any] = {}
        if enabled is not None:
            made |= (self.on if enabled else self.off) or {}
        if effort:
            made |= {name: effort for name in _EFFORTS if name in self._variables}
        if budget >= 0 and _BUDGET in self._variables:
            made[_BUDGET] = budget
        return {**made, **given}

    @cached_property
    def field(self) -> str | None:
        """What the template calls the thinking in a message; None where it has no place for it."""
        return next((each for each in FIELDS if self._with_thought(each) is not None), None)

    @cached_property
    def gap(self) -> str:
        """The space between the closing mark and the answer, as the template writes it in earlier turns."""
        text = self._with_thought(self.field) if self.field is not None else self._shown(self.off or {})
        if text is None or self.marks is None:
            return ""
        _, closed, after = plain(text).rpartition(self.marks.closing)
        return after[: len(after) - len(after.lstrip(SPACE))] if closed else ""

    @cached_property
    def keeps_earlier(self) -> bool:
        """Whether the thinking of a turn is still in the prompt once the user has said more."""
        if self.field is None:
            return False
        turn = {"role": "assistant", "content": _ANSWER, self.field: _THOUGHT}
        text = self._text([_USER, turn, _USER], opens=True, kwargs=self.on or {})
        return text is not None and _THOUGHT in text

    def with_own_field(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with its thinking under the name that this template knows."""
        return [self._renamed(each) for each in messages]

    def _renamed(self, message: Message) -> Message:
        given = next((message[each] for each in FIELDS if isinstance(message.get(each), str) and message[each]), None)
        if given is None or message["role"] != "assistant" or self.field is None:
            return message
        rest = {key: value for key, value in message.items() if key not in FIELDS}
        crowded = message.get("content") and message.get("tool_calls")
        return rest if crowded and not self._stands_beside_calls else {**rest, self.field: given}

    @cached_property
    def _stands_beside_calls(self) -> bool:
        """Whether a turn may have thinking, text and calls: some templates refuse that."""
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
        turn = {"role": "assistant", "content": _ANSWER, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "x"}
        told = {**turn, self.field or "": _THOUGHT}
        fails, works = (self._text([_USER, each, result], opens=True, kwargs={}) for each in (told, turn))
        return fails is not None or works is None

    def _with_thought(self, field: str) -> OwnText | None:
        turn = {"role": "assistant", "content": _ANSWER, field: _THOUGHT}
        text = self._text([_USER, turn], opens=False, kwargs=self.on or {})
        return text if text is not None and _THOUGHT in text and _ANSWER in text else None

    def _shown(self, kwargs: Kwargs) -> OwnText | None:
        return self._text([_USER], opens=True, kwargs=kwargs)

    def _text(self, messages: Sequence[Message], *, opens: bool, kwargs: Kwargs) -> OwnText | None:
        try:
            return self._render(messages, opens, kwargs)
        except TemplateError:
            return None
