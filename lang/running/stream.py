"""A growing list that one side fills and any number of threads and event loops read, each from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """Thread-safe. After `close` nothing may be put in; readers end there, or get the error that closed it."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._closed = False
        self._error: BaseException | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, item: T) -> None:
        """Append one item; dropped where the stream is closed."""
        with self._changed:
            if not self._closed:
                self._items.append(item)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """The end; a second one changes nothing."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._wake()

    def snapshot(self) -> tuple[T, ...]:
        """What is there now."""
        with self._changed:
            return tuple(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """Every item in order; waits for those to come."""
        position = 0
        while True:
            with self._changed:
                while not self._closed and len(self._items) <= position:
                    self._changed.wait()
                new = self._items[position:]
            if not new:
                break
            yield from new
            position += len(new)
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[T]:
        position = 0
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                new, closed = self._items[position:], self._closed
                woken = loop.create_future()
                if not new and not closed:
                    self._waiting.append((loop, woken))
            if new:
                for item in new:
                    yield item
                position += len(new)
            elif closed:
                break
            else:
                await woken
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, woken in self._waiting:
            with contextlib.suppress(RuntimeError):  # that loop is closed; nobody waits there any more
                loop.call_soon_threadsafe(_set, woken)
        self._waiting.clear()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
