"""What /v1/responses answers, as OpenAI has it: a response, the items of its output, its counts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..extension import Extension
from ..usage import CompletionDetails, Usage

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class LikelyToken(msgspec.Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class OutputToken(msgspec.Struct, frozen=True):
    """A token of an answer's text; `top_logprobs` are the likeliest at its position, most likely first."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[LikelyToken]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """logprobs: empty unless they were asked for."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[OutputToken] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model says. content: one part, or none before that has begun."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought. summary: always empty. encrypted_content: the same text again for clients that send only
    that back, where asked for; nothing is hidden in it."""

    id: str
    status: ItemStatus
    summary: list[dict[str, str]] = []
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """arguments: JSON text, cut short where the response is incomplete."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, whose input is text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputDetails(msgspec.Struct, frozen=True):
    """cached_tokens: those that earlier work had computed. cache_write_tokens: the others, which later requests may
    find in the cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """reasoning_tokens: those before the answer. sapwood: what the completion took."""

    reasoning_tokens: int
    sapwood: Any = UNSET


class ResponseCounts(msgspec.Struct, frozen=True):
    """Token counts as this endpoint names them."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponseCounts:
        cached, details = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details
        output = OutputDetails(0)
        if isinstance(details, CompletionDetails):
            output = OutputDetails(details.reasoning_tokens, details.sapwood)
        return cls(
            usage.prompt_tokens,
            InputDetails(cached, usage.prompt_tokens - cached),
            usage.completion_tokens,
            output,
            usage.total_tokens,
        )


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed. code: one of OpenAI's for it."""

    code: str
    message: str


class Incomplete(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response: what was asked (fields that were not given, with what they mean), and what came of it so far.

    tools: those that the model could call. sapwood: where the request has a constraint or asks about the cache.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseCounts | None = None
    user: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    sapwood: Extension | UnsetType = UNSET


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the items that a response was made from; first_id and last_id are empty where it is."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
