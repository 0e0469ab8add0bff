"""A front in a background thread with an event loop of its own, for callers that have none or another one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..wire.errors import EngineDead
from ..wire.options import EngineConfig
from .front import Front
from .startup import FrontInfo

T = TypeVar("T")


class FrontThread:
    """A started front. `call` and `acall` run coroutines in its loop; `close` ends it all.

    The thread keeps only itself and the front alive, so that an owner who is forgotten can still be finalized.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start it and wait until it can serve; raises what `Front.start` raises."""
        self.front = Front(config)
        self._owner = os.getpid()
        self._lock = threading.Lock()  # orders calls before the stop, so that none is queued behind it and forgotten
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._live, args=(started,), name="sapwood-front", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:  # also an impatient Ctrl-C
            self.close()
            raise

    @property
    def info(self) -> FrontInfo:
        return self.front.info

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Interrupting the wait (Ctrl-C) cancels it. Raises EngineDead after `close`."""
        future = self._schedule(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineDead("The engine was shut down.") from None
        except BaseException:
            future.cancel()
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop; cancelling the caller cancels `work`."""
        future = self._schedule(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closing and not _is_cancelling():
                raise EngineDead("The engine was shut down.") from None
            raise

    def close(self) -> None:
        """End the front and its thread; returns when both are gone."""
        if os.getpid() != self._owner:  # a fork has neither the thread nor the processes
            return
        with self._lock:
            if not self._closing:
                self._closing = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: the start has failed
                    self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:  # the garbage collector may have called from there
            self._thread.join()

    def _schedule(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if not self._closing and os.getpid() == self._owner:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise EngineDead("The engine was shut down.")

    def _live(self, started: concurrent.futures.Future[None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        start = asyncio.create_task(self.front.start())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        if start.done() and (error := start.exception()) is not None:
            started.set_exception(error)
            return
        if start.done():
            started.set_result(None)
            await stop
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await self.front.stop()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
