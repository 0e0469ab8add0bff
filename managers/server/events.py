"""A streamed answer: one JSON object after the other, as server-sent events or as lines.

Headers go out with the first event, so that an error that comes before it still gets its own status. It must never
let a client that does not read hold a request open for longer than the stated bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from ..wire.answers import TextChunk
from .errors import Answer, answer_for
from .server_state import STATE
from .work import Work

_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a proxy that collects events would defeat streaming
}


@dataclass(frozen=True)
class Framing:
    """How the events of a stream are told apart. named: each is called by the `type` that its JSON begins with.

    before, after: around each event's JSON. end: what follows the last one, unless that is an error.
    """

    content_type: str
    before: bytes
    after: bytes
    end: bytes = b""
    named: bool = False

    def framed(self, payload: bytes) -> bytes:
        """One event as it travels. payload: JSON, which for a named event begins with `{"type":"…"`."""
        name = b"event: %b\n" % payload.split(b'"', 4)[3] if self.named else b""
        return b"%b%b%b%b" % (name, self.before, payload, self.after)


_SSE = "text/event-stream; charset=utf-8"
OPENAI_EVENTS = Framing(_SSE, b"data: ", b"\n\n", b"data: [DONE]\n\n")
NAMED_EVENTS = Framing(_SSE, b"data: ", b"\n\n", named=True)
JSON_LINES = Framing("application/x-ndjson", b"", b"\n")


class StalledClient(ConnectionError):
    """The client took no data for too long; its request is aborted."""


class EventStream:
    """Writes events to one client. All methods raise ConnectionError where the client is gone or stalled."""

    def __init__(self, request: web.Request, request_id: str, framing: Framing = OPENAI_EVENTS) -> None:
        self._request = request
        self._framing = framing
        self._stall_seconds = request.app[STATE].stall_seconds
        headers = {**_HEADERS, "Content-Type": framing.content_type, "X-Request-Id": request_id}
        self.response = web.StreamResponse(headers=headers)

    @property
    def begun(self) -> bool:
        """Whether the headers are out; from then on an error can only be an event."""
        return self.response.prepared

    async def send(self, *payloads: bytes) -> None:
        """One event for each payload, in one write. Waits while more than the transport's high-water mark is unsent."""
        await self._write(b"".join(map(self._framing.framed, payloads)))

    async def _write(self, data: bytes) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
        if not data:
            return
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self.response.write(data)
        except TimeoutError:
            self._drop()
            raise StalledClient(f"the client took no data for {self._stall_seconds:g} s") from None

    async def done(self) -> web.StreamResponse:
        """The end of the response, after what the framing has for that."""
        await self._write(self._framing.end)
        return await self._end()

    async def fail(self, events: Sequence[bytes]) -> web.StreamResponse:
        """The events that tell of an error, and the end of the response."""
        await self.send(*events)
        return await self._end()

    async def _end(self) -> web.StreamResponse:
        await self.response.write_eof()
        return self.response

    def _drop(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()  # pyright: ignore[reportAttributeAccessIssue]


async def stream_events(
    request: web.Request,
    work: Work,
    render: Callable[[int, TextChunk], list[bytes]],
    last: Callable[[], list[bytes]] | None = None,
    *,
    framing: Framing = OPENAI_EVENTS,
    failed: Callable[[Answer], list[bytes]] = lambda answer: [answer.body()],
) -> web.StreamResponse:
    """Answer with `render(number of the prompt, chunk)` for every chunk, then `last()`, then the framing's end.

    An error before the first event is raised (and gets its own status); a later one becomes the events of `failed`.
    """
    events = EventStream(request, work.request_id, framing)
    try:
        async with aclosing(work.chunks()) as chunks:
            async for number, chunk in chunks:
                payloads = render(number, chunk)
                if payloads:
                    await events.send(*payloads)
        if last is not None:
            await events.send(*last())
        return await events.done()
    except ConnectionError:
        raise
    except Exception as error:
        if not events.begun:
            raise
        work.error = error
        return await events.fail(failed(answer_for(error, stopping=request.app[STATE].phase == "stopping")))
