"""The events of a streamed response, as OpenAI has them. `type` comes first in each, which names it in the stream."""

from __future__ import annotations

import msgspec

from .response_objects import OutputItem, OutputText, OutputToken, ReasoningText, ResponseObject


class _Numbered(msgspec.Struct, frozen=True, kw_only=True):
    """sequence_number: counts a response's events from 0."""

    sequence_number: int


class _OfResponse(_Numbered, frozen=True, kw_only=True):
    response: ResponseObject


class ResponseQueued(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.queued"):
    pass


class ResponseCreated(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.created"):
    pass


class ResponseInProgress(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.in_progress"):
    pass


class ResponseCompleted(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.completed"):
    pass


class ResponseIncomplete(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.incomplete"):
    pass


class ResponseFailed(_OfResponse, frozen=True, kw_only=True, tag_field="type", tag="response.failed"):
    pass


class ResponseErrored(_Numbered, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """Comes before `response.failed` and says what an error's body would."""

    code: str | None
    message: str
    param: str | None


class ItemAdded(_Numbered, frozen=True, kw_only=True, tag_field="type", tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(_Numbered, frozen=True, kw_only=True, tag_field="type", tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class _OfItem(_Numbered, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class _OfPart(_OfItem, frozen=True, kw_only=True):
    content_index: int = 0


class PartAdded(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDelta(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    delta: str
    logprobs: list[OutputToken]


class OutputTextDone(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.output_text.done"):
    text: str
    logprobs: list[OutputToken]


class ReasoningDelta(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_OfPart, frozen=True, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(
    _OfItem, frozen=True, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(_OfItem, frozen=True, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(
    _OfItem, frozen=True, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomInputDone(_OfItem, frozen=True, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.done"):
    input: str


ResponseEvent = (
    ResponseQueued
    | ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ResponseErrored
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
