"""What /v1/completions answers: a whole completion, or the chunks of a streamed one."""

from __future__ import annotations

import codecs
import time

import msgspec
from msgspec import UNSET, UnsetType

from ...front.generation import Completion
from ...wire.answers import Alternative, TextChunk, TokenLogprob
from ..extension import Extension, Extensions, prompt_token_ids
from ..usage import Usage
from .bodies import CompletionBody
from .token_names import token_name


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one item per token. `text_offset` counts characters within the choice's text; the tokens that
    make up one character together all have its place.

    `top_logprobs` has as many entries as were asked for: of tokens with one name the likeliest has it, and the others
    are called "token_id:" and their id.
    """

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
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A completion or a chunk of one. In a stream `usage` is absent, unless the caller wanted it at the end.

    `sapwood` is there where the request has a constraint; in a stream, in the first chunk.
    """

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    sapwood: Extension | UnsetType = UNSET


class TextAnswers:
    """Makes the answers to one request. Choice `i * n + j` is sample j of prompt i."""

    def __init__(self, body: CompletionBody, model: str, request_id: str) -> None:
        self._n = body.n or 1
        self._tells_ids = bool(body.return_token_ids)
        self._explains_cache = bool(body.explain_cache)
        self._extensions = Extensions(constrained=body.constrained, explains_cache=self._explains_cache)
        self._logprobs = body.logprobs is not None
        self._no_usage = None if body.include_usage else UNSET
        self._model = model
        self._id = request_id
        self._created = int(time.time())
        self._places: dict[int, _Place] = {}

    def whole(self, completions: list[list[Completion]], usage: Usage) -> TextAnswer:
        """The answer that is not streamed."""
        choices = [self._choice(i * self._n + each.index, each) for i, all_ in enumerate(completions) for each in all_]
        return self._answer(choices, usage, self._extensions.whole([each[0] for each in completions]))

    def events(self, prompt: int, chunk: TextChunk) -> list[bytes]:
        """The events that a chunk becomes; none where it has nothing to say yet."""
        explained = self._explains_cache and chunk.cache is not None
        told = self._tells_ids and bool(chunk.token_ids or chunk.prompt_ids)
        says = chunk.text or chunk.finish or chunk.logprobs or chunk.prompt_logprobs or chunk.relaxed
        if not (says or explained or told):
            return []
        index = prompt * self._n + chunk.index
        logprobs = None
        if self._logprobs:
            place = self._places.setdefault(index, _Place())
            logprobs = _text_logprobs(chunk.prompt_logprobs or [], chunk.logprobs, place)
        reason = chunk.finish.reason if chunk.finish else None
        choice = TextChoice(index, chunk.text, logprobs, reason, *self._ids(chunk))
        extension = self._extensions.of_chunk(chunk, index)
        return [msgspec.json.encode(self._answer([choice], self._no_usage, extension))]

    def usage_event(self, usage: Usage) -> bytes:
        """The event after the last choice has ended, for a caller who wanted the counts."""
        return msgspec.json.encode(self._answer([], usage))

    def _choice(self, index: int, completion: Completion) -> TextChoice:
        logprobs = None
        if self._logprobs:
            logprobs = _text_logprobs(completion.prompt_logprobs or [], completion.logprobs or [], _Place())
        return TextChoice(index, completion.text, logprobs, completion.finish_reason, *self._ids(completion))

    def _ids(self, told: TextChunk | Completion) -> tuple[list[int] | UnsetType, list[int] | UnsetType]:
        """The ids of the prompt, once, and of the tokens."""
        return (prompt_token_ids(told), told.token_ids) if self._tells_ids else (UNSET, UNSET)

    def _answer(
        self, choices: list[TextChoice], usage: Usage | UnsetType | None, extension: Extension | UnsetType = UNSET
    ) -> TextAnswer:
        return TextAnswer(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage, sapwood=extension
        )


class _Place:
    """Where in a choice's text its next token begins."""

    def __init__(self) -> None:
        self.offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def advance(self, data: bytes, *, is_end: bool = False) -> None:
        """Go past the characters that these bytes complete. At the end, also past one that was left unfinished."""
        self.offset += len(self._decoder.decode(data, is_end))


def _text_logprobs(prompt: list[TokenLogprob], completion: list[TokenLogprob], place: _Place) -> TextLogprobs:
    """The next tokens of a choice's text, which moves `place` on; the echoed prompt's come first."""
    tokens = prompt + completion
    offsets = []
    for i, each in enumerate(tokens):
        offsets.append(place.offset)
        place.advance(each.data, is_end=i == len(prompt) - 1)
    return TextLogprobs(
        tokens=[token_name(each) for each in tokens],
        token_logprobs=[each.logprob for each in tokens],
        top_logprobs=[None if each.logprob is None else _by_name(each.top) for each in tokens],
        text_offset=offsets,
    )


def _by_name(top: list[Alternative]) -> dict[str, float]:
    """The likeliest tokens of a position, likeliest first."""
    named: dict[str, float] = {}
    for each in top:
        name = token_name(each)
        named[name if name not in named else f"token_id:{each.token_id}"] = each.logprob
    return named
