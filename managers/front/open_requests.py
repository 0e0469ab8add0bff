"""The requests that are open in a front: found by their ids, counted, and given what arrives for them.

It must never keep an answer for nobody.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import msgspec

from ...runtime.records import Message
from ..wire.answers import Finish, MovedLine, Rejected, TextChunk
from ..wire.errors import InvalidRequest, Overloaded, RequestAborted, RequestFailed
from ..wire.requests import Abort, Submit
from .streams import OpenRequest, RequestStream


class OpenRequests:
    """`samples` counts the sequences that were submitted and have not ended; at most `capacity` may be."""

    def __init__(self, capacity: int, send: Callable[[Message], None]) -> None:
        """send: to the tokenizer."""
        self.samples = 0
        self._capacity = capacity
        self._send = send
        self._serial = itertools.count()
        self._by_wire_id: dict[str, OpenRequest] = {}
        self._by_request_id: dict[str, OpenRequest] = {}

    def stream(self, submit: Submit, moved: Sequence[MovedLine] = ()) -> RequestStream:
        """Send a request in; `moved` is told with its first chunk. Raises Overloaded, or InvalidRequest where its id is
        taken or it could never fit."""
        samples, field = (submit.n, "n") if submit.score is None else (len(submit.score), "continuations")
        if samples > self._capacity:
            raise InvalidRequest.about((field,), f"asks for {samples} sequences; {self._capacity} can be open at once.")
        if submit.request_id in self._by_request_id:
            text = f"A request with the id {submit.request_id!r} is open; request_id must be unique."
            raise InvalidRequest(text, "request_id")
        if self.samples + samples > self._capacity:
            raise Overloaded(f"{self.samples} of {self._capacity} possible sequences are open; try again later.")
        wire_id = f"{submit.request_id}#{next(self._serial)}"  # an id used again must not get its old request's chunks
        self._send(msgspec.structs.replace(submit, request_id=wire_id))
        request = OpenRequest(submit.request_id, wire_id, samples, moved)
        self._by_wire_id[wire_id] = request
        self._by_request_id[submit.request_id] = request
        self.samples += samples
        return RequestStream(request, self._drop, asyncio.get_running_loop())

    def abort(self, request_id: str) -> bool:
        """End a request with RequestAborted; False where no such request is open."""
        request = self._by_request_id.get(request_id)
        if request is None:
            return False
        self._drop(request)
        request.fail(RequestAborted(f"The request {request_id!r} was aborted."))
        return True

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """End every request with an error of its own."""
        for request in list(self._by_wire_id.values()):
            self._release(request)
            request.fail(error())

    def take_chunk(self, chunk: TextChunk) -> None:
        """Hand a chunk to its owner, if there is one still."""
        request = self._by_wire_id.get(chunk.request_id)
        if request is None:
            return
        finish = chunk.finish
        if finish is not None and finish.reason in ("error", "abort"):
            self._drop(request)
            request.fail(_error_for(finish))
            return
        cache = chunk.cache
        if cache is not None and request.moved:
            cache = msgspec.structs.replace(cache, moved=request.moved)
        request.arrived.put_nowait(msgspec.structs.replace(chunk, request_id=request.request_id, cache=cache))
        if finish is not None:
            if request.left == 1:
                self._release(request)
                request.arrived.put_nowait(None)
            else:
                self.samples -= 1
            request.left -= 1

    def take_rejection(self, message: Rejected) -> None:
        """End a request that the tokenizer refuses."""
        request = self._by_wire_id.get(message.request_id)
        if request is not None:
            self._release(request)
            request.fail(message.error())

    def _drop(self, request: OpenRequest) -> None:
        if request.wire_id in self._by_wire_id:
            self._release(request)
            self._send(Abort(request.wire_id))

    def _release(self, request: OpenRequest) -> None:
        del self._by_wire_id[request.wire_id]
        del self._by_request_id[request.request_id]
        self.samples -= request.left


def _error_for(finish: Finish) -> Exception:
    if finish.reason == "abort":
        return RequestAborted(finish.message or "The request was aborted.")
    return _FAULTS[finish.fault](finish.message)


_FAULTS = {"server": RequestFailed, "load": Overloaded, "request": InvalidRequest}
