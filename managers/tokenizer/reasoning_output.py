"""Thinking between the messages and the text: where a completion's begins, what it must match, and the text of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ...constrained.spec import Compiled, Thinking, with_thinking
from ...runtime.text.chat.prompts import ChatPrompt
from ...runtime.text.thoughts.marks import Begins, ReasoningFormat
from ...runtime.text.thoughts.template_reasoning import TemplateReasoning
from ...runtime.text.thoughts.thought_parser import ReasoningParser
from ...runtime.text.tokenizers.base import Tokenizer
from ..wire.requests import Chat, ReasoningOptions


@dataclass(frozen=True)
class ReasoningStart:
    """How the completions of a prompt begin, for a model that marks its thinking. budget: tokens of it, or -1."""

    marks: ReasoningFormat
    begins: Begins
    gap: str
    budget: int


def template_kwargs(chat: Chat, reasoning: TemplateReasoning) -> dict[str, Any]:
    """The variables of the template, with those for what the request says of thinking."""
    options = wishes(chat, reasoning)
    return reasoning.kwargs(
        enabled=options.enabled, effort=options.effort, budget=options.budget, given=chat.template_kwargs
    )


def wishes(chat: Chat, reasoning: TemplateReasoning) -> ReasoningOptions:
    """What the request says of thinking: also where it names a variable that templates have for that and this one has
    not."""
    options = chat.reasoning
    for name in ("enable_thinking", "thinking"):
        value = chat.template_kwargs.get(name)
        if options.enabled is None and isinstance(value, bool) and not reasoning.reads(name):
            options = msgspec.structs.replace(options, enabled=value)
    return options


def reasoning_start(prompt: ChatPrompt, chat: Chat) -> ReasoningStart | None:
    """None where the completion is all answer."""
    reasoning, begins, options = prompt.reasoning, prompt.begins, wishes(chat, prompt.reasoning)
    budget = options.budget
    marks = reasoning.marks
    if marks is None or begins == "answer":
        return None
    if options.enabled is False:
        if reasoning.off is not None and begins == "unknown":
            return None
        budget = 0  # the template cannot keep it from thinking: its thinking ends where it begins
    return ReasoningStart(marks, begins, reasoning.gap, budget)


def thinking_first(grammar: Compiled | None, start: ReasoningStart | None, tokenizer: Tokenizer) -> Compiled | None:
    """What a completion must match, `grammar` being about its answer."""
    if start is None or (grammar is None and start.budget < 0) or not start.marks.in_template:
        return grammar
    thinking = Thinking(
        inside=start.begins == "inside",
        opening=start.marks.opening,
        closing=start.marks.closing,
        tokens=start.marks.control_ids(tokenizer),
        gap=start.gap if grammar is not None else "",
        budget=start.budget,
    )
    return with_thinking(grammar, thinking)


def reasoning_output(
    chat: Chat | None, start: ReasoningStart | None, tokenizer: Tokenizer, *, constrained: bool
) -> ReasoningOutput | None:
    """What reads one completion. None where its thinking, if there is any, is to stay text."""
    if chat is None or start is None or not chat.reasoning.separate:
        return None
    return ReasoningOutput(start, tokenizer, chat.reasoning, constrained=constrained)


class ReasoningOutput:
    """The thinking of one completion, as its text comes. tokens: how many of the completion's it has taken."""

    def __init__(
        self, start: ReasoningStart, tokenizer: Tokenizer, options: ReasoningOptions, *, constrained: bool
    ) -> None:
        """constrained: the answer is, and nothing of it may be taken for space beside a mark."""
        self._parser = ReasoningParser(start.marks, start.begins, start.gap if constrained else None)
        self._marks = frozenset(start.marks.control_ids(tokenizer))
        self._includes = options.include
        self._thought = ""
        self.tokens = 0

    @property
    def shown(self) -> frozenset[int]:
        """Control tokens whose text the next `push` must have."""
        return frozenset() if self._parser.is_over else self._marks

    def push(self, text: str, count: int) -> str:
        """What of the text is answer. count: the completion's tokens so far."""
        was_over = self._parser.is_over
        thought, answer = self._parser.push(text)
        self._thought += thought
        if not was_over and self._parser.has_thought:
            self.tokens = count
        return answer

    def flush(self) -> str:
        """At the end of the completion: answer that was held back."""
        thought, answer = self._parser.flush()
        self._thought += thought
        return answer

    def take(self) -> str:
        """The thinking since the last time."""
        thought, self._thought = self._thought, ""
        return thought if self._includes else ""
