"""What Ollama's /api/chat and /api/generate answer: lines of JSON, or one object that says all of it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...wire.answers import Alternative, Finish, TextChunk, TokenLogprob, ToolCallPiece
from ..errors import ErrorDetail
from ..usage import Usage


class OllamaError(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and the last line of a stream that failed."""

    error: str


def ollama_error(_status: int, detail: ErrorDetail) -> OllamaError:
    """Ollama's form."""
    return OllamaError(detail.message)


class OllamaFunction(msgspec.Struct, frozen=True):
    """index: which call of the answer it is. arguments: those of a call that was cut off are {"INVALID_JSON": text}."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct, frozen=True):
    id: str
    function: OllamaFunction


class OllamaMessage(msgspec.Struct, frozen=True):
    """A message of the assistant, or what is new of it. thinking: what it thought before."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLikely(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None
    bytes: list[int]


class OllamaLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[OllamaLikely]


class OllamaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer has; the counts (of tokens) and the durations (in nanoseconds) only its end."""

    model: str
    created_at: str
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatAnswer(OllamaCounts, frozen=True, kw_only=True):
    """The answer of /api/chat, or one line of it."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaCounts, frozen=True, kw_only=True):
    """The answer of /api/generate, or one line of it."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaAnswers:
    """Makes the answers to one request. Calls are told whole, as soon as they are."""

    def __init__(self, model: str, *, chat: bool, logprobs: bool) -> None:
        self._model = model
        self._chat = chat
        self._logprobs = logprobs
        self._began = time.perf_counter_ns()
        self._first: int | None = None
        self._finish = Finish("stop")
        self._calls: list[ToolCallPiece] = []  # the call that has begun, in one piece
        self._text: list[str] = []
        self._thought: list[str] = []
        self._called: list[OllamaCall] = []
        self._tokens: list[TokenLogprob] = []

    def loaded(self, reason: str) -> OllamaCounts:
        """The answer to who only wanted the model to be loaded."""
        return self._answer("", "", [], [], done_reason=reason)

    def take(self, chunk: TextChunk) -> list[bytes]:
        """The lines that a chunk becomes."""
        if self._first is None and chunk.token_ids:
            self._first = time.perf_counter_ns()
        calls = self._finished_calls(chunk)
        self._text.append(chunk.text)
        self._thought.append(chunk.reasoning)
        self._called += calls
        self._tokens += chunk.logprobs
        if chunk.finish is not None:
            self._finish = chunk.finish
        if not (chunk.text or chunk.reasoning or calls or chunk.logprobs):
            return []
        return [msgspec.json.encode(self._answer(chunk.text, chunk.reasoning, calls, chunk.logprobs))]

    def last(self, usage: Usage) -> list[bytes]:
        """The line that ends a stream."""
        return [msgspec.json.encode(self._ended("", "", [], [], usage))]

    def whole(self, usage: Usage) -> OllamaCounts:
        """The answer that is not streamed, once all chunks are taken."""
        return self._ended("".join(self._text), "".join(self._thought), self._called, self._tokens, usage)

    def _finished_calls(self, chunk: TextChunk) -> list[OllamaCall]:
        done = []
        for piece in chunk.tool_calls:
            if piece.id:
                done += self._calls
                self._calls = [piece]
            else:
                last = self._calls[-1]
                self._calls = [msgspec.structs.replace(last, arguments=last.arguments + piece.arguments)]
        if chunk.finish is not None:
            done += self._calls
            self._calls = []
        return [OllamaCall(each.id, OllamaFunction(each.index, each.name, _arguments(each))) for each in done]

    def _ended(
        self, text: str, thought: str, calls: list[OllamaCall], tokens: list[TokenLogprob], usage: Usage
    ) -> OllamaCounts:
        now = time.perf_counter_ns()
        first = now if self._first is None else self._first
        return self._answer(
            text,
            thought,
            calls,
            tokens,
            done_reason="length" if self._finish.reason == "length" else "stop",
            total_duration=now - self._began,
            load_duration=0,
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=first - self._began,
            eval_count=usage.completion_tokens,
            eval_duration=now - first,
        )

    def _answer(
        self, text: str, thought: str, calls: list[OllamaCall], tokens: list[TokenLogprob], **end: Any
    ) -> OllamaCounts:
        fields = {
            "model": self._model,
            "created_at": stamp(time.time()),
            "done": bool(end),
            "logprobs": [_logprob(each) for each in tokens] if self._logprobs and tokens else UNSET,
            **end,
        }
        if self._chat:
            message = OllamaMessage("assistant", text, thought or UNSET, calls or UNSET)
            return OllamaChatAnswer(message=message, **fields)
        return OllamaGenerateAnswer(response=text, thinking=thought or UNSET, **fields)


def stamp(seconds: float) -> str:
    """A time as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _arguments(call: ToolCallPiece) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (RecursionError, ValueError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": call.arguments}


def _logprob(token: TokenLogprob) -> OllamaLogprob:
    return OllamaLogprob(token.text, token.logprob, list(token.data), [_likely(each) for each in token.top])


def _likely(token: Alternative) -> OllamaLikely:
    return OllamaLikely(token.text, token.logprob, list(token.data))
