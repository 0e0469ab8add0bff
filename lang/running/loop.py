"""The event loop in which the requests of all programs run: one thread per process, whoever runs the programs.

One for all, because connections to a server belong to an event loop and are worth keeping from program to program.
No code of a user's ever runs in it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop for as long as the process lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.owner = os.getpid()
        self._thread = threading.Thread(target=self._live, name="sapwood-programs", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `work`; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; interrupting the wait cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_lock = threading.Lock()
_thread: LoopThread | None = None


def loop_thread() -> LoopThread:
    """This process's loop thread, started on first use; a forked process gets one of its own."""
    global _thread
    with _lock:
        if _thread is None or _thread.owner != os.getpid():
            _thread = LoopThread()
        return _thread


async def ended(future: concurrent.futures.Future[Any]) -> None:
    """Wait for the end of something, without raising its error, nor cancelling it where the wait is cancelled."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits any more
            loop.call_soon_threadsafe(lambda: over.done() or over.set_result(None))

    future.add_done_callback(tell)
    await over


def in_event_loop() -> bool:
    """Whether this thread is running an event loop just now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
