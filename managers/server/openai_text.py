"""What /v1/completions answers: a whole completion, or the chunks of a streamed one."""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET, UnsetType

from ..messages import TextChunk, TokenLogprob
from ..results import Completion
from .openai_bodies import CompletionBody
from .token_names import token_name
from .usage import Usage


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one item per token. `text_offset` counts characters within the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True):
    """One completion of one prompt; `finish_reason` is null in every chunk of a stream but the choice's last."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A completion or a chunk of one. In a stream `usage` is absent, unless the caller wanted it at the end."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class TextAnswers:
    """Makes the answers to one request. Choice `i * n + j` is sample j of prompt i."""

    def __init__(self, body: CompletionBody, model: str, request_id: str) -> None:
        self._n = body.n or 1
        self._logprobs = body.logprobs is not None
        self._no_usage = None if body.include_usage else UNSET
        self._model = model
        self._id = request_id
        self._created = int(time.time())
        self._offsets: dict[int, int] = {}

    def whole(self, completions: list[list[Completion]], usage: Usage) -> TextAnswer:
        """The answer that is not streamed."""
        choices = [self._choice(i * self._n + each.index, each) for i, all_ in enumerate(completions) for each in all_]
        return self._answer(choices, usage)

    def events(self, prompt: int, chunk: TextChunk) -> list[bytes]:
        """The events that a chunk becomes; none where it has nothing to say yet."""
        if not (chunk.text or chunk.finish or chunk.logprobs or chunk.prompt_logprobs):
            return []
        index = prompt * self._n + chunk.index
        logprobs = None
        if self._logprobs:
            tokens = (chunk.prompt_logprobs or []) + chunk.logprobs
            logprobs = _text_logprobs(tokens, self._offsets.get(index, 0))
            self._offsets[index] = self._offsets.get(index, 0) + sum(len(each.text) for each in tokens)
        choice = TextChoice(index, chunk.text, logprobs, chunk.finish.reason if chunk.finish else None)
        return [msgspec.json.encode(self._answer([choice], self._no_usage))]

    def usage_event(self, usage: Usage) -> bytes:
        """The event after the last choice has ended, for a caller who wanted the counts."""
        return msgspec.json.encode(self._answer([], usage))

    def _choice(self, index: int, completion: Completion) -> TextChoice:
        tokens = (completion.prompt_logprobs or []) + (completion.logprobs or [])
        logprobs = _text_logprobs(tokens, 0) if self._logprobs else None
        return TextChoice(index, completion.text, logprobs, completion.finish_reason)

    def _answer(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> TextAnswer:
        return TextAnswer(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)


def _text_logprobs(tokens: list[TokenLogprob], offset: int) -> TextLogprobs:
    """The first token's text starts `offset` characters into the text."""
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.text)
    return TextLogprobs(
        tokens=[token_name(each) for each in tokens],
        token_logprobs=[each.logprob for each in tokens],
        top_logprobs=[
            None if each.logprob is None else {token_name(top): top.logprob for top in each.top} for each in tokens
        ],
        text_offset=offsets,
    )
