"""From the chunks of one completion to a response and its events. The response that is not streamed is made by the same
steps, so that both are the same.

It must know nothing of a connection or of what is stored.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from ...wire.answers import TextChunk, TokenLogprob, ToolCallPiece
from ..errors import Answer
from ..extension import Extensions
from ..openai.token_names import token_name
from ..usage import Usage
from . import stream_records as records
from .response_objects import (
    CustomCallItem,
    FunctionCallItem,
    Incomplete,
    ItemStatus,
    LikelyToken,
    MessageItem,
    OutputItem,
    OutputText,
    OutputToken,
    ReasoningItem,
    ReasoningText,
    ResponseCounts,
    ResponseFailure,
    ResponseObject,
    Status,
)

ENCRYPTED_PREFIX = "sapwood1."
_OfResponse = TypeVar("_OfResponse", bound=records.ResponseEvent)
_FAILURES = {"invalid_value": "invalid_prompt", "overloaded": "rate_limit_exceeded"}


def sealed(text: str) -> str:
    """A model's thoughts as `encrypted_content`: only opaque, since who gets it has the text anyway."""
    return ENCRYPTED_PREFIX + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class ResponseBuilder:
    """Builds one response. Feed it the chunks in order, then end it once: `finish`, `fail` or `cancel`.

    Each step returns the events that tell of it.
    """

    def __init__(
        self,
        response: ResponseObject,
        extensions: Extensions,
        *,
        logprobs: bool = False,
        seal: bool = False,
        tells_ids: bool = False,
        namespaces: Mapping[str, tuple[str, str]] = {},
    ) -> None:
        """response: as it begins. seal: reasoning items get `encrypted_content`. namespaces: of tools that have one, by
        the name under which the model knows them: the namespace, and the name in it."""
        self.response = response
        self.token_ids: list[int] = []
        self._extensions = extensions
        self._wants_logprobs = logprobs
        self._seals = seal
        self._tells_ids = tells_ids
        self._namespaces = namespaces
        self._number = 0
        self._output: list[OutputItem] = []  # those that are done
        self._item: OutputItem | None = None
        self._pieces: list[str] = []  # of the open item's text
        self._logprobs: list[OutputToken] = []  # of the open item
        self._untold: list[OutputToken] = []  # logprobs that no event has yet
        self._finish_reason: str | None = None

    def queue(self) -> list[records.ResponseEvent]:
        """The first events of a response in the background."""
        events: list[records.ResponseEvent] = [self._told_of(records.ResponseCreated)]
        return [*events, self._told_of(records.ResponseQueued)]

    def begin(self) -> list[records.ResponseEvent]:
        """The events before what the model says."""
        events: list[records.ResponseEvent] = [] if self._number else [self._told_of(records.ResponseCreated)]
        self.response = replace(self.response, status="in_progress")
        return [*events, self._told_of(records.ResponseInProgress)]

    def take(self, chunk: TextChunk) -> list[records.ResponseEvent]:
        """What a chunk adds."""
        events: list[records.ResponseEvent] = []
        extension = self._extensions.of_chunk(chunk, 0)
        if extension is not UNSET:
            self.response = replace(self.response, sapwood=extension)
        self.token_ids += chunk.token_ids
        if self._tells_ids and chunk.prompt_ids is not None:
            self.response = replace(self.response, prompt_token_ids=chunk.prompt_ids)
        if chunk.reasoning:
            events += self._think(chunk.reasoning)
        elif self._wants_logprobs:
            self._untold += [_token(each) for each in chunk.logprobs]
        if chunk.text:
            events += self._say(chunk.text)
        for piece in chunk.tool_calls:
            events += self._call(piece)
        if not isinstance(self._item, MessageItem | None):
            self._untold = []
        if chunk.finish is not None:
            self._finish_reason = chunk.finish.reason
        return events

    def finish(self, usage: Usage) -> list[records.ResponseEvent]:
        """The last events, after a chunk that had a finish."""
        is_cut = self._finish_reason == "length"
        events = [] if self._output or self._item is not None else self._open_message()
        events += self._close("incomplete" if is_cut else "completed")
        status: Status = "incomplete" if is_cut else "completed"
        details = Incomplete("max_output_tokens") if is_cut else None
        self._end(status, usage, incomplete_details=details)
        made = records.ResponseIncomplete if is_cut else records.ResponseCompleted
        return [*events, self._told_of(made)]

    def fail(self, answer: Answer, usage: Usage) -> list[records.ResponseEvent]:
        """The events of an error."""
        events = self._close("incomplete")
        detail = answer.detail
        code = _FAILURES.get(detail.code or "", "server_error")
        self._end("failed", usage, error=ResponseFailure(code, detail.message))
        told = records.ResponseErrored(
            sequence_number=self._next(), code=detail.code, message=detail.message, param=detail.param
        )
        return [*events, told, self._told_of(records.ResponseFailed)]

    def cancel(self, usage: Usage) -> None:
        """Its sender wants no more of it."""
        self._close("incomplete")
        self._end("cancelled", usage)

    def so_far(self) -> ResponseObject:
        """The response with what is done of its output."""
        return replace(self.response, output=[*self._output])

    def _end(self, status: Status, usage: Usage, **fields: Any) -> None:
        done = int(time.time()) if status == "completed" else None
        if self._tells_ids:
            fields["token_ids"] = self.token_ids
        counts = ResponseCounts.of(usage)
        self.response = replace(
            self.response, status=status, output=[*self._output], usage=counts, completed_at=done, **fields
        )

    def _told_of(self, made: Callable[..., _OfResponse]) -> _OfResponse:
        return made(sequence_number=self._next(), response=self.response)

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _place(self) -> dict[str, Any]:
        """Where an event of the open item lies."""
        assert self._item is not None
        return {"sequence_number": self._next(), "item_id": self._item.id, "output_index": len(self._output)}

    def _open(self, item: OutputItem) -> list[records.ResponseEvent]:
        events = self._close("completed")
        self._item, self._pieces, self._logprobs = item, [], []
        added = records.ItemAdded(sequence_number=self._next(), output_index=len(self._output), item=item)
        return [*events, added]

    def _think(self, text: str) -> list[records.ResponseEvent]:
        events = []
        if not isinstance(self._item, ReasoningItem):
            events += self._open(ReasoningItem(id=new_id("rs"), status="in_progress", content=[]))
            events.append(records.PartAdded(**self._place(), part=ReasoningText("")))
        self._pieces.append(text)
        return [*events, records.ReasoningDelta(**self._place(), delta=text)]

    def _open_message(self) -> list[records.ResponseEvent]:
        events = self._open(MessageItem(id=new_id("msg"), status="in_progress", content=[]))
        return [*events, records.PartAdded(**self._place(), part=OutputText(text=""))]

    def _say(self, text: str) -> list[records.ResponseEvent]:
        events = [] if isinstance(self._item, MessageItem) else self._open_message()
        self._pieces.append(text)
        return [*events, records.OutputTextDelta(**self._place(), delta=text, logprobs=self._told())]

    def _told(self) -> list[OutputToken]:
        """The logprobs that the next event of a message tells."""
        told, self._untold = self._untold, []
        self._logprobs += told
        return told

    def _call(self, piece: ToolCallPiece) -> list[records.ResponseEvent]:
        events = []
        if piece.id:
            namespace, name = self._namespaces.get(piece.name, (None, piece.name))
            among = {} if namespace is None else {"namespace": namespace}
            self._untold = []  # of the marks of a call
            if piece.custom:
                item: OutputItem = CustomCallItem(
                    id=new_id("ctc"), call_id=piece.id, name=name, input="", status="in_progress", **among
                )
            else:
                item = FunctionCallItem(
                    id=new_id("fc"), call_id=piece.id, name=name, arguments="", status="in_progress", **among
                )
            events += self._open(item)
        if piece.arguments:
            self._pieces.append(piece.arguments)
            made = records.CustomInputDelta if isinstance(self._item, CustomCallItem) else records.ArgumentsDelta
            events.append(made(**self._place(), delta=piece.arguments))
        return events

    def _close(self, status: ItemStatus) -> list[records.ResponseEvent]:
        """End the open item, if there is one."""
        events: list[records.ResponseEvent] = []
        text = "".join(self._pieces)
        match self._item:
            case None:
                return []
            case MessageItem():
                if self._untold:
                    events.append(records.OutputTextDelta(**self._place(), delta="", logprobs=self._told()))
                part = OutputText(text=text, logprobs=self._logprobs)
                events.append(records.OutputTextDone(**self._place(), text=text, logprobs=self._logprobs))
                events.append(records.PartDone(**self._place(), part=part))
                item = replace(self._item, status=status, content=[part])
            case ReasoningItem():
                part = ReasoningText(text)
                events.append(records.ReasoningDone(**self._place(), text=text))
                events.append(records.PartDone(**self._place(), part=part))
                encrypted = sealed(text) if self._seals else UNSET
                item = replace(self._item, status=status, content=[part], encrypted_content=encrypted)
            case FunctionCallItem():
                events.append(records.ArgumentsDone(**self._place(), name=self._item.name, arguments=text))
                item = replace(self._item, status=status, arguments=text)
            case CustomCallItem():
                events.append(records.CustomInputDone(**self._place(), input=text))
                item = replace(self._item, status=status, input=text)
        done = records.ItemDone(sequence_number=self._next(), output_index=len(self._output), item=item)
        self._output.append(item)
        self._item = None
        return [*events, done]


def _token(token: TokenLogprob) -> OutputToken:
    top = [LikelyToken(token_name(each), list(each.data), each.logprob) for each in token.top]
    return OutputToken(token_name(token), list(token.data), token.logprob or 0.0, top)
