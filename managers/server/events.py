"""A streamed answer: server-sent events, one JSON object each.

Headers go out with the first event, so that an error that comes before it still gets its own status. It must never
let a client that does not read hold a request open for longer than the stated bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from aiohttp import web

from ..wire.answers import TextChunk
from .errors import Answer, answer_for
from .server_state import STATE
from .work import Work

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a proxy that collects events would defeat streaming
}


class StalledClient(ConnectionError):
    """The client took no data for too long; its request is aborted."""


class EventStream:
    """Writes events to one client. All methods raise ConnectionError where the client is gone or stalled."""

    def __init__(self, request: web.Request, request_id: str) -> None:
        self._request = request
        self._stall_seconds = request.app[STATE].stall_seconds
        self.response = web.StreamResponse(headers={**_HEADERS, "X-Request-Id": request_id})

    @property
    def begun(self) -> bool:
        """Whether the headers are out; from then on an error can only be an event."""
        return self.response.prepared

    async def send(self, *payloads: bytes) -> None:
        """One event for each payload, in one write. Waits while more than the transport's high-water mark is unsent."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self.response.write(b"".join(b"data: %b\n\n" % payload for payload in payloads))
        except TimeoutError:
            self._drop()
            raise StalledClient(f"the client took no data for {self._stall_seconds:g} s") from None

    async def done(self) -> web.StreamResponse:
        """The `[DONE]` event and the end of the response."""
        await self.send(b"[DONE]")
        return await self._end()

    async def fail(self, answer: Answer) -> web.StreamResponse:
        """An error event and the end of the response, without `[DONE]`."""
        await self.send(answer.body())
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
    last: Callable[[], bytes] | None = None,
) -> web.StreamResponse:
    """Answer with `render(number of the prompt, chunk)` for every chunk, then `last()`, then `[DONE]`.

    An error before the first event is raised (and gets its own status); a later one becomes an error event.
    """
    events = EventStream(request, work.request_id)
    try:
        async with aclosing(work.chunks()) as chunks:
            async for number, chunk in chunks:
                payloads = render(number, chunk)
                if payloads:
                    await events.send(*payloads)
        if last is not None:
            await events.send(last())
        return await events.done()
    except ConnectionError:
        raise
    except Exception as error:
        if not events.begun:
            raise
        work.error = error
        return await events.fail(answer_for(error, stopping=request.app[STATE].phase == "stopping"))
