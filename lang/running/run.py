"""One run of one program: its open steps, their end, and what it has done so far."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..backends.base import Backend
from ..errors import ProgramCancelled, ProgramError, ProgramMisuse
from ..ir import GenOptions
from .loop import ended, in_event_loop, loop_thread
from .output import Outcome, Output
from .stream import Stream

inside: contextvars.ContextVar[tuple[Run, ...]] = contextvars.ContextVar("inside", default=())
"""The runs of whose programs this code is a part. Others who read a streaming state wait for what is yet to come."""

_ENDED = "The program has ended; nothing can be added to its states any more."
_CANCELLED = "The program was cancelled."


@dataclass(frozen=True)
class Event:
    """Something that a program did, for its graph. kind: "text", "begin" and "end" (of a role), "step", "fork", "join".

    branch: where. text: what was said, or the role. output: of a step. branches: the children.
    """

    kind: str
    branch: str
    text: str = ""
    output: Output | None = None
    branches: tuple[str, ...] = ()


class Run:
    """Thread-safe. Everything that a program starts is ended here: `close` it, or `cancel` it."""

    def __init__(self, program: str, backend: Backend, defaults: GenOptions, *, stream: bool, is_async: bool) -> None:
        """defaults: for every `gen`. stream: texts come piece by piece. is_async: the program runs in an event loop."""
        self.program = program
        self.backend = backend
        self.defaults = defaults
        self.stream = stream
        self.outputs: list[Output] = []
        self.events: list[Event] = []
        self.began = time.perf_counter()
        self.ended: float | None = None
        self._is_async = is_async
        self._lock = threading.Lock()
        self._refusal: type[ProgramCancelled | ProgramMisuse] | None = None
        self._tasks: dict[Output, concurrent.futures.Future[None]] = {}
        self._seen: set[ProgramError] = set()
        self._streams: list[Stream[Any]] = []

    def adopt(self, stream: Stream[Any]) -> None:
        """Close this stream, of a state's items, when the run ends: whoever reads it must not wait for ever."""
        self._streams.append(stream)

    def check_open(self) -> None:
        """Raise ProgramCancelled or ProgramMisuse where the program may do nothing any more."""
        if self._refusal is not None:
            raise self._refusal(_CANCELLED if self._refusal is ProgramCancelled else _ENDED)

    def note(self, event: Event) -> None:
        """Remember what the program does. Raises as `check_open`."""
        with self._lock:
            self.check_open()
            self.events.append(event)

    def start(self, output: Output, work: Callable[[], Awaitable[Outcome]]) -> None:
        """Carry out a step. Raises as `check_open`."""
        with self._lock:
            self.check_open()
            self.outputs.append(output)
            self.events.append(Event("step", output.branch, output=output))
            task = loop_thread().submit(_carry_out(output, work))
            self._tasks[output] = task
        task.add_done_callback(lambda _: self._forget(output))

    def saw(self, error: ProgramError) -> None:
        """This error was raised to whoever reads a state. Where that is the program, it is up to the program."""
        if not self.stream or self in inside.get():
            self._seen.add(error.origin)

    @property
    def is_watched(self) -> bool:
        """Whether the caller is no part of the program, which streams and is still running."""
        return self.stream and self.ended is None and self not in inside.get()

    def check_may_block(self, outputs: list[Output]) -> None:
        """Raise ProgramMisuse in an `async def` program that would hold up its event loop."""
        if self._is_async and not all(each.done for each in outputs) and in_event_loop():
            text = "Waiting here would block the event loop of an async program"
            raise ProgramMisuse(f"{text}; use `await s.aget(name)`, `await s.atext()`, `await forks.ajoin()`.")

    def cancel(self) -> None:
        """Abort the open requests; whatever the program still asks for raises ProgramCancelled."""
        self._refuse(ProgramCancelled)
        self._close_streams(ProgramCancelled(_CANCELLED))
        for task in self._open():
            task.cancel()

    def close(self) -> None:
        """Wait for the open steps, then raise the first error that the program has not seen. `finish` must follow."""
        try:
            while open_tasks := self._open():
                concurrent.futures.wait(open_tasks)
        except BaseException:
            self.cancel()
            raise
        self._conclude()

    async def aclose(self) -> None:
        """`close` in an event loop."""
        try:
            while open_tasks := self._open():
                for task in open_tasks:
                    await ended(task)
        except BaseException:
            self.cancel()
            raise
        self._conclude()

    def abandon(self) -> None:
        """The program itself failed: abort what it has left running."""
        self.cancel()
        self.ended = time.perf_counter()

    def finish(self) -> None:
        """The program has ended well, and all that it started has ended."""
        self.ended = time.perf_counter()
        self._close_streams(None)

    def _conclude(self) -> None:
        self._refuse(ProgramMisuse)
        for output in self.outputs:
            error = output.error
            if isinstance(error, ProgramError) and error.origin not in self._seen:
                raise error.again()
            if isinstance(error, ProgramCancelled):
                raise error

    def _refuse(self, refusal: type[ProgramCancelled | ProgramMisuse]) -> None:
        with self._lock:
            self._refusal = self._refusal or refusal

    def _close_streams(self, error: ProgramCancelled | None) -> None:
        for stream in self._streams:
            stream.close(error)

    def _open(self) -> list[concurrent.futures.Future[None]]:
        with self._lock:
            return list(self._tasks.values())

    def _forget(self, output: Output) -> None:
        output.fail(ProgramCancelled(_CANCELLED))  # where it was cancelled before it began
        with self._lock:
            del self._tasks[output]


async def _carry_out(output: Output, work: Callable[[], Awaitable[Outcome]]) -> None:
    try:
        outcome = await work()
    except asyncio.CancelledError:
        output.fail(ProgramCancelled(_CANCELLED))
        raise
    except (ProgramError, ProgramCancelled) as error:  # of a step before this one
        output.fail(error)
    except Exception as error:
        output.fail(ProgramError(output.text, output.location, error))
    else:
        output.finish(outcome)
