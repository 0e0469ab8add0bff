"""What /v1/chat/completions answers: a whole completion, or the chunks of a streamed one."""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET, UnsetType

from ..messages import Alternative, TextChunk, TokenLogprob
from ..results import Completion
from .openai_bodies import ChatBody
from .token_names import token_name
from .usage import Usage


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    """A token of the completion; `top_logprobs` are the likeliest at its position, most likely first."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopToken]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token of the completion."""

    content: list[ChatToken]
    refusal: None = None


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that is not streamed."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatDeltaChoice(msgspec.Struct, frozen=True):
    """`finish_reason` is null in every chunk but the choice's last."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. `usage` is absent, unless the caller wanted it at the end."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDeltaChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatAnswers:
    """Makes the answers to one request. Choice i is sample i."""

    def __init__(self, body: ChatBody, model: str, request_id: str) -> None:
        self._logprobs = bool(body.logprobs)
        self._no_usage = None if body.include_usage else UNSET
        self._model = model
        self._id = request_id
        self._created = int(time.time())
        self._begun: set[int] = set()

    def whole(self, completions: list[list[Completion]], usage: Usage) -> ChatAnswer:
        """The answer that is not streamed."""
        choices = [self._choice(each) for each in completions[0]]
        return ChatAnswer(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)

    def events(self, _prompt: int, chunk: TextChunk) -> list[bytes]:
        """The events that a chunk becomes: the role before a choice's first text, and then what there is to say."""
        events = []
        if chunk.index not in self._begun:
            self._begun.add(chunk.index)
            events.append(self._event(chunk.index, ChatDelta(role="assistant", content="")))
        if chunk.text or chunk.finish or chunk.logprobs:
            delta = ChatDelta(content=chunk.text) if chunk.text else ChatDelta()
            logprobs = _chat_logprobs(chunk.logprobs) if self._logprobs else None
            events.append(self._event(chunk.index, delta, logprobs, chunk.finish.reason if chunk.finish else None))
        return events

    def usage_event(self, usage: Usage) -> bytes:
        """The event after the last choice has ended, for a caller who wanted the counts."""
        return msgspec.json.encode(self._chunk([], usage))

    def _choice(self, completion: Completion) -> ChatChoice:
        logprobs = _chat_logprobs(completion.logprobs or []) if self._logprobs else None
        message = ChatMessage("assistant", completion.text)
        return ChatChoice(completion.index, message, logprobs, completion.finish_reason)

    def _event(
        self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None = None, finish_reason: str | None = None
    ) -> bytes:
        return msgspec.json.encode(
            self._chunk([ChatDeltaChoice(index, delta, logprobs, finish_reason)], self._no_usage)
        )

    def _chunk(self, choices: list[ChatDeltaChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)


def _chat_logprobs(tokens: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ChatToken(token_name(each), each.logprob, list(each.data), [_top_token(top) for top in each.top])
            for each in tokens
        ]
    )


def _top_token(top: Alternative) -> TopToken:
    return TopToken(token_name(top), top.logprob, list(top.data))
