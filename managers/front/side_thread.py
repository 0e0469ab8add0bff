"""Slow blocking work beside an event loop; never holds up the end of the process, as asyncio's own threads do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """The result of `function`, run in a thread of its own that is forgotten where the wait is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(setter: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            setter(outcome)

    def run() -> None:
        try:
            outcome = (future.set_result, function())
        except Exception as error:
            outcome = (future.set_exception, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future
