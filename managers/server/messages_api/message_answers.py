"""What /v1/messages answers: a whole message, or the events of a streamed one."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...front.generation import Completion, ToolCall
from ...wire.answers import Finish
from ..errors import ErrorDetail
from ..extension import Extension, Extensions, prompt_token_ids
from ..usage import Usage
from .message_blocks import SEAL, sealed

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
THREAD = "thread"  # the field that asks for a conversation which the server holds


class ThreadDetails(msgspec.Struct, frozen=True):
    """By this Anthropic's clients know that a conversation is not held here, and go on by sending all of it."""

    error_code: str = "thread_unsupported_request"
    unsupported: tuple[str, ...] = ("thread",)


class MessageProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """type: what kind of error; message: what was wrong and what is allowed."""

    type: str
    message: str
    details: ThreadDetails | None = None


class MessageError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The body of every answer that is not a success, and of an error event within a stream."""

    error: MessageProblem
    request_id: str | None = None


def message_error(status: int, detail: ErrorDetail) -> MessageError:
    """Anthropic's form."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = ThreadDetails() if status == 400 and detail.param == THREAD else None
    return MessageError(error=MessageProblem(kind, detail.message, details))


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought before its answer. signature: where thinking is not to be shown, it is sealed in it."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool. input: that of a call which was cut off is {"INVALID_JSON": its text}."""

    id: str
    name: str
    input: dict[str, Any]


MessageBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokens(msgspec.Struct, frozen=True):
    """thinking_tokens: of the output, those before the answer."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """input_tokens: those of the prompt that had to be computed; cache_read_input_tokens: the others, which earlier
    work had. Whatever is computed is kept; nothing is created that would cost more."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens | UnsetType = UNSET
    service_tier: Literal["standard"] = "standard"


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message that is not streamed, or (at the start of a stream) one without content. `sapwood` is there where the
    request has a constraint or asks about the cache."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[MessageBlock] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    sapwood: Extension | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True):
    """input_tokens: of the prompt that the request would have."""

    input_tokens: int


SIGNATURE = f"{SEAL}shown"
"""The signature of thinking that is shown: it says nothing, and clients send it back."""


def whole_message(
    completion: Completion,
    opening: MessageAnswer,
    usage: Usage,
    extensions: Extensions,
    *,
    hides_thinking: bool,
    tells_ids: bool,
) -> MessageAnswer:
    """The answer that is not streamed. opening: the message before anything has come of it."""
    content: list[MessageBlock] = []
    if completion.reasoning:
        shown = ("", sealed(completion.reasoning)) if hides_thinking else (completion.reasoning, SIGNATURE)
        content.append(ThinkingBlock(thinking=shown[0], signature=shown[1]))
    if completion.text:
        content.append(TextBlock(text=completion.text))
    content += [ToolUseBlock(id=each.id, name=each.name, input=_input(each)) for each in completion.tool_calls]
    reason, sequence = stop_reason(completion.finish)
    return msgspec.structs.replace(
        opening,
        content=content,
        stop_reason=reason,
        stop_sequence=sequence,
        usage=message_usage(usage),
        prompt_token_ids=prompt_token_ids(completion) if tells_ids else UNSET,
        token_ids=completion.token_ids if tells_ids else UNSET,
        sapwood=extensions.whole([completion]),
    )


def stop_reason(finish: Finish) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence`."""
    if finish.reason == "stop" and isinstance(finish.matched, str):
        return "stop_sequence", finish.matched
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(finish.reason, "end_turn"), None


def message_usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=UNSET if details is UNSET else OutputTokens(details.reasoning_tokens),
    )


def _input(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (RecursionError, ValueError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": call.arguments}
