"""The events of a streamed message: blocks that open, grow and close, one after the other."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...wire.answers import TextChunk, ToolCallPiece
from ..errors import Answer
from ..extension import Extensions, prompt_token_ids
from ..usage import Usage
from .message_answers import (
    SIGNATURE,
    MessageAnswer,
    MessageBlock,
    MessageError,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    message_error,
    message_usage,
    stop_reason,
)
from .message_blocks import sealed


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    """The first event; the message has no content yet."""

    message: MessageAnswer


class BlockStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: MessageBlock


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ping"):
    """Says nothing."""


class BlockText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class InputDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    """A piece of the JSON text of a call's input."""

    partial_json: str


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"):
    """Comes last in a block of thinking."""

    signature: str


BlockDelta = BlockText | InputDelta | ThinkingDelta | SignatureDelta


class BlockChange(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: BlockDelta


class BlockStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct, frozen=True):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    """Why the message ended, and the counts of all of it; its tokens, where they are wanted."""

    delta: StopDelta
    usage: MessageUsage
    token_ids: list[int] | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """The last event."""


MessageEvent = MessageStart | BlockStart | Ping | BlockChange | BlockStop | MessageDelta | MessageStop | MessageError


class MessageStream:
    """Makes the events of one message."""

    def __init__(
        self, opening: MessageAnswer, extensions: Extensions, *, hides_thinking: bool, tells_ids: bool
    ) -> None:
        """opening: the message before anything has come of it."""
        self._opening = opening
        self._extensions = extensions
        self._hides_thinking = hides_thinking
        self._tells_ids = tells_ids
        self._token_ids: list[int] = []
        self._begun = False
        self._index = 0
        self._open: type[Any] | None = None  # the kind of the block that is open
        self._thought = ""  # hidden, and to be sealed
        self._stop = StopDelta(None, None)

    def take(self, chunk: TextChunk, usage: Usage) -> list[bytes]:
        """The events that a chunk becomes."""
        events: list[Any] = []
        if not self._begun:
            self._begun = True
            extension = self._extensions.of_chunk(chunk, chunk.index)
            ids = prompt_token_ids(chunk) if self._tells_ids else UNSET
            start = msgspec.structs.replace(
                self._opening, usage=message_usage(usage), prompt_token_ids=ids, sapwood=extension
            )
            events += [MessageStart(message=start), Ping()]
        self._token_ids += chunk.token_ids
        if chunk.reasoning:
            events += self._thinking(chunk.reasoning)
        if chunk.text:
            if self._open is not TextBlock:
                events += [*self._close(), *self._begin(TextBlock(text=""))]
            events.append(BlockChange(index=self._index, delta=BlockText(text=chunk.text)))
        for piece in chunk.tool_calls:
            events += self._call(piece)
        if chunk.finish:
            self._stop = StopDelta(*stop_reason(chunk.finish))
            events += self._close()
        return _encoded(events)

    def last(self, usage: Usage) -> list[bytes]:
        """The events after the last chunk."""
        ids = self._token_ids if self._tells_ids else UNSET
        return _encoded([MessageDelta(delta=self._stop, usage=message_usage(usage), token_ids=ids), MessageStop()])

    def fail(self, answer: Answer) -> list[bytes]:
        """The event of an error."""
        return [answer.body(message_error)]

    def _thinking(self, text: str) -> list[Any]:
        events: list[Any] = []
        if self._open is not ThinkingBlock:
            events += [*self._close(), *self._begin(ThinkingBlock(thinking="", signature=""))]
        if self._hides_thinking:
            self._thought += text
        else:
            events.append(BlockChange(index=self._index, delta=ThinkingDelta(thinking=text)))
        return events

    def _call(self, piece: ToolCallPiece) -> list[Any]:
        events: list[Any] = []
        if piece.id:
            events += [*self._close(), *self._begin(ToolUseBlock(id=piece.id, name=piece.name, input={}))]
            events.append(BlockChange(index=self._index, delta=InputDelta(partial_json="")))
        if piece.arguments:
            events.append(BlockChange(index=self._index, delta=InputDelta(partial_json=piece.arguments)))
        return events

    def _begin(self, block: MessageBlock) -> list[Any]:
        self._open = type(block)
        return [BlockStart(index=self._index, content_block=block)]

    def _close(self) -> list[Any]:
        """The end of the block that is open, if one is."""
        if self._open is None:
            return []
        events: list[Any] = []
        if self._open is ThinkingBlock:
            signature = sealed(self._thought) if self._hides_thinking else SIGNATURE
            events.append(BlockChange(index=self._index, delta=SignatureDelta(signature=signature)))
            self._thought = ""
        events.append(BlockStop(index=self._index))
        self._index += 1
        self._open = None
        return events


def _encoded(events: list[Any]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]
