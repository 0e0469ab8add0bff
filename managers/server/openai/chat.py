"""What /v1/chat/completions answers: a whole completion, or the chunks of a streamed one."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...front.generation import Completion, ToolCall
from ...wire.answers import Alternative, TextChunk, TokenLogprob, ToolCallPiece
from ..extension import Extension, Extensions, prompt_token_ids
from ..usage import Usage
from .bodies import ChatBody
from .token_names import token_name


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    """A token of the completion; `top_logprobs` are the likeliest at its position, most likely first."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token of the completion, those of its reasoning and of its tool calls included."""

    content: list[ChatToken]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """arguments: JSON text; in a stream, a piece of it, and the name comes with the first one only."""

    arguments: str
    name: str | UnsetType = UNSET


class CalledCustom(msgspec.Struct, frozen=True):
    """A custom tool; its input is text, and in a stream a piece of that."""

    input: str
    name: str | UnsetType = UNSET


class ChatToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """Of a function or of a custom tool, as its type says."""

    id: str
    type: str
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of the call with this number; its id, type and name come first, and once."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """`content` is null where there is nothing but tool calls. reasoning_content: what the model thought before it, as
    vLLM, SGLang, llama.cpp and DeepSeek name it; absent where it thought nothing."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that is not streamed. `sapwood` is there where the request has a constraint, and token ids where it
    wants them."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    sapwood: Extension | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatDeltaChoice(msgspec.Struct, frozen=True):
    """`finish_reason` is null in every chunk but the choice's last, whose delta is empty."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. `usage` is absent, unless the caller wanted it at the end; `sapwood` comes once."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDeltaChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    sapwood: Extension | UnsetType = UNSET


class ChatAnswers:
    """Makes the answers to one request. Choice i is sample i."""

    def __init__(self, body: ChatBody, model: str, request_id: str) -> None:
        self._logprobs = bool(body.logprobs)
        self._no_usage = None if body.include_usage else UNSET
        self._model = model
        self._id = request_id
        self._created = int(time.time())
        self._begun: set[int] = set()
        self._tells_ids = bool(body.return_token_ids)
        self._extensions = Extensions(constrained=body.constrained, explains_cache=bool(body.explain_cache))

    def whole(self, completions: list[list[Completion]], usage: Usage) -> ChatAnswer:
        """The answer that is not streamed."""
        choices = [self._choice(each) for each in completions[0]]
        extension = self._extensions.whole([each[0] for each in completions])
        return ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt_token_ids(completions[0][0]) if self._tells_ids else UNSET,
            sapwood=extension,
        )

    def events(self, _prompt: int, chunk: TextChunk) -> list[bytes]:
        """The events that a chunk becomes: the role before a choice's first text, and then what there is to say."""
        events = []
        if chunk.index not in self._begun:
            self._begun.add(chunk.index)
            extension = self._extensions.of_chunk(chunk, chunk.index)
            opening = ChatDeltaChoice(chunk.index, ChatDelta(role="assistant", content=""), None, None)
            prompt_ids = prompt_token_ids(chunk) if self._tells_ids else UNSET
            events.append(msgspec.json.encode(self._chunk([opening], self._no_usage, extension, prompt_ids)))
        deltas = [ChatDelta(reasoning_content=chunk.reasoning)] if chunk.reasoning else []
        deltas += [ChatDelta(content=chunk.text)] if chunk.text else []
        deltas += [ChatDelta(tool_calls=[each]) for piece in chunk.tool_calls for each in _call_deltas(piece)]
        logprobs = _chat_logprobs(chunk.logprobs) if self._logprobs and chunk.logprobs else None
        token_ids = chunk.token_ids if self._tells_ids and chunk.token_ids else UNSET
        if (logprobs is not None or token_ids is not UNSET) and not deltas:
            deltas = [ChatDelta()]
        for i, delta in enumerate(deltas):
            ids = token_ids if i == 0 else UNSET
            choice = ChatDeltaChoice(chunk.index, delta, logprobs if i == 0 else None, None, ids)
            events.append(msgspec.json.encode(self._chunk([choice], self._no_usage)))
        if chunk.finish:
            choice = ChatDeltaChoice(chunk.index, ChatDelta(), None, chunk.finish.reason)
            events.append(msgspec.json.encode(self._chunk([choice], self._no_usage)))
        return events

    def usage_event(self, usage: Usage) -> bytes:
        """The event after the last choice has ended, for a caller who wanted the counts."""
        return msgspec.json.encode(self._chunk([], usage))

    def _choice(self, completion: Completion) -> ChatChoice:
        logprobs = _chat_logprobs(completion.logprobs or []) if self._logprobs else None
        calls = [_call(each) for each in completion.tool_calls]
        content = completion.text or (None if calls else "")
        message = ChatMessage(
            "assistant", content, reasoning_content=completion.reasoning or UNSET, tool_calls=calls or UNSET
        )
        token_ids = completion.token_ids if self._tells_ids else UNSET
        return ChatChoice(completion.index, message, logprobs, completion.finish_reason, token_ids)

    def _chunk(
        self,
        choices: list[ChatDeltaChoice],
        usage: Usage | UnsetType | None,
        extension: Extension | UnsetType = UNSET,
        prompt_ids: list[int] | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt_ids,
            sapwood=extension,
        )


def _call(call: ToolCall) -> ChatToolCall:
    if call.custom:
        return ChatToolCall(id=call.id, type="custom", custom=CalledCustom(call.arguments, call.name))
    return ChatToolCall(id=call.id, type="function", function=CalledFunction(call.arguments, call.name))


def _called(arguments: str, name: str | UnsetType, *, custom: bool) -> dict[str, Any]:
    """What is called, under the name of its kind."""
    return {"custom": CalledCustom(arguments, name)} if custom else {"function": CalledFunction(arguments, name)}


def _call_deltas(piece: ToolCallPiece) -> list[ToolCallDelta]:
    """The opening of a call, without arguments, and what is new of its arguments, each as a delta of its own."""
    deltas = []
    if piece.id:
        called = _called("", piece.name, custom=piece.custom)
        kind = "custom" if piece.custom else "function"
        deltas.append(ToolCallDelta(index=piece.index, id=piece.id, type=kind, **called))
    if piece.arguments:
        deltas.append(ToolCallDelta(index=piece.index, **_called(piece.arguments, UNSET, custom=piece.custom)))
    return deltas


def _chat_logprobs(tokens: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ChatToken(token_name(each), each.logprob, list(each.data), [_top_token(top) for top in each.top])
            for each in tokens
        ]
    )


def _top_token(top: Alternative) -> TopLogprob:
    return TopLogprob(token_name(top), top.logprob, list(top.data))
