"""A request's way back: the chunks that arrived for it, and its owner's handle to read or to abandon them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType

from ..wire.answers import MovedLine, TextChunk


class OpenRequest:
    """The front's side of an open request. `left` counts the samples that have not finished. moved: what was changed in
    its system messages."""

    def __init__(self, request_id: str, wire_id: str, samples: int, moved: Sequence[MovedLine] = ()) -> None:
        self.request_id = request_id
        self.wire_id = wire_id
        self.left = samples
        self.moved = list(moved)
        self.arrived: asyncio.Queue[TextChunk | Exception | None] = asyncio.Queue()  # None: the end

    def fail(self, error: Exception) -> None:
        """The owner gets what has arrived so far, then the error."""
        self.arrived.put_nowait(error)


class RequestStream:
    """The chunks of one request, as an async iterator and an async context manager. For one reader.

    Leaving the context, cancelling the read or dropping the stream before its end aborts the request. Iterating raises
    InvalidRequest, Overloaded, RequestFailed, RequestAborted or EngineDead where the request ends that way.
    """

    def __init__(
        self, request: OpenRequest, drop: Callable[[OpenRequest], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """drop: aborts the request if it is still open; to be called in `loop`'s thread."""
        self.request_id = request.request_id
        self._request = request
        self._drop = drop
        self._loop = loop
        self._over = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> TextChunk:
        if self._over:
            raise StopAsyncIteration
        try:
            item = await self._request.arrived.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(item, TextChunk):
            return item
        self._over = True
        if item is None:
            raise StopAsyncIteration
        raise item

    def close(self) -> None:
        """Stop reading; aborts the request if it has not ended."""
        self._over = True
        self._drop(self._request)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._over:  # the garbage collector may run in any thread, and in the midst of anything
            with contextlib.suppress(RuntimeError):  # the loop is closed, and everything with it
                self._loop.call_soon_threadsafe(self._drop, self._request)
