"""Compiled constraints for the tokenizer process: compiled once, in processes of their own, off the event loop.

A constraint can be anything that a stranger wrote. It must never hold up the loop, nor another request for longer than
another compiler takes to be free: what takes too long is killed with its process, and the answer is a refusal.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..constrained.spec import Compiled, Constraint
from ..runtime.errors import SapwoodError
from .grammar_wire import HEADER_BYTES, Done, FromCompiler, Job, Setup, Started, frame, length_of
from .logs import logger

log = logger("grammar")

COMPILE_SECONDS = 5.0
START_SECONDS = 60.0
MEMORY_BYTES = 2**30
MAX_COMPILERS = 3
PATIENCE_SECONDS = 0.05  # how long a constraint waits for a busy compiler before another one is started
CACHE_ENTRIES = 1024
CACHE_BYTES = 64 * 2**20
TIMEOUT_MEMORY_SECONDS = 60.0  # how long a constraint that took too long is refused unread
_ENTRY_BYTES = 1024  # what an entry of the cache takes beside its payload
COMMAND = (sys.executable, "-P", "-m", f"{__name__.rpartition('.')[0]}.grammar_compiler")


class Refused(SapwoodError):
    """The constraint cannot be compiled, in one sentence for its user."""


class CompilerFailed(SapwoodError):
    """No compiler can be started, or it has a fault; the request fails though its constraint may be right."""


@dataclass
class _Entry:
    """An outcome that is kept. expires: the monotonic time from which it counts no more."""

    outcome: Compiled | str
    size: int
    expires: float = float("inf")


class _Cache:
    """Outcomes by key, the least recently used go first; bounded in number and in bytes."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> Compiled | str | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.outcome

    def put(self, key: bytes, outcome: Compiled | str, seconds: float = float("inf")) -> None:
        size = _ENTRY_BYTES + (len(outcome) if isinstance(outcome, str) else len(outcome.payload) + len(outcome.checks))
        self._entries[key] = _Entry(outcome, size, time.monotonic() + seconds)
        self._bytes += size
        while len(self._entries) > CACHE_ENTRIES or (self._bytes > CACHE_BYTES and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self._bytes -= self._entries.pop(key).size


class _CompilerDied(Exception):
    """The process ended before it answered."""


class _Compiler:
    """One compiling process. Used by one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decoder = msgspec.msgpack.Decoder(FromCompiler)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def start(cls, command: Sequence[str], setup: Setup) -> _Compiler:
        """Start a process and wait until it can compile. Raises CompilerFailed."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        compiler = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await compiler._ask(setup)
            if not isinstance(answer, Started):
                raise CompilerFailed("The grammar compiler did not start as it should.")
        except BaseException as error:
            compiler.kill()
            if isinstance(error, TimeoutError | _CompilerDied):
                raise CompilerFailed("The grammar compiler did not start; the log says why.") from None
            raise
        return compiler

    async def compile(self, constraint: Constraint) -> Done:
        """Raises TimeoutError, or _CompilerDied; in both cases, and where it is cancelled, the process is over."""
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                answer = await self._ask(Job(constraint))
        except BaseException:
            self.kill()
            raise
        return answer if isinstance(answer, Done) else Done(failed="an answer out of turn")

    def kill(self) -> None:
        if self.alive:
            self._process.kill()

    async def _ask(self, message: Setup | Job) -> FromCompiler:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(frame(message))
            await self._process.stdin.drain()
            header = await self._process.stdout.readexactly(HEADER_BYTES)
            return self._decoder.decode(await self._process.stdout.readexactly(length_of(header)))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise _CompilerDied from error


class _Pool:
    """Compilers, started when they are needed. Where all are busy for a while another one joins them."""

    def __init__(self, command: Sequence[str], setup: Setup) -> None:
        self._command = command
        self._setup = setup
        self._idle: list[_Compiler] = []
        self._busy: set[_Compiler] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._failure: CompilerFailed | None = None

    @property
    def pids(self) -> list[int]:
        return [compiler.pid for compiler in (*self._idle, *self._busy)]

    def start_one(self) -> None:
        """Start one more, unless there are enough."""
        if len(self._idle) + len(self._busy) + len(self._starting) < MAX_COMPILERS:
            self._failure = None
            task = asyncio.create_task(self._start())
            self._starting.add(task)

    async def take(self) -> _Compiler:
        """An idle compiler, to be given back. Raises CompilerFailed."""
        async with self._changed:
            while True:
                self._idle = [compiler for compiler in self._idle if compiler.alive]
                if self._idle:
                    compiler = self._idle.pop()
                    self._busy.add(compiler)
                    return compiler
                if not (self._busy or self._starting):
                    self.start_one()
                try:
                    await asyncio.wait_for(self._changed.wait(), None if self._starting else PATIENCE_SECONDS)
                except TimeoutError:
                    self.start_one()
                if self._failure is not None and not (self._idle or self._busy or self._starting):
                    raise self._failure

    async def give_back(self, compiler: _Compiler) -> None:
        """Also where it is over: then another one takes its place."""
        self._busy.discard(compiler)
        if compiler.alive:
            self._idle.append(compiler)
        else:
            self.start_one()
        async with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        for task in self._starting:
            task.cancel()
        for compiler in (*self._idle, *self._busy):
            compiler.kill()

    async def _start(self) -> None:
        try:
            self._idle.append(await _Compiler.start(self._command, self._setup))
        except CompilerFailed as error:
            self._failure = error
            log.warning("%s", error)
        except OSError as error:
            self._failure = CompilerFailed(f"The grammar compiler cannot be started: {error}.")
        finally:
            self._starting.discard(asyncio.current_task())  # pyright: ignore[reportArgumentType]
            async with self._changed:
                self._changed.notify_all()


@dataclass
class _Work:
    """A constraint that is being compiled, or waits to be, for so many requests."""

    task: asyncio.Task[Compiled]
    waiters: int = 0
    begun: bool = False


class GrammarService:
    """Compiles constraints for one model. Everything in one event loop."""

    def __init__(self, model_path: Path, command: Sequence[str] = COMMAND) -> None:
        """Starts nothing yet."""
        self._pool = _Pool(command, Setup(str(model_path), MEMORY_BYTES))
        self._cache = _Cache()
        self._work: dict[bytes, _Work] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the compilers."""
        return self._pool.pids

    def warm(self) -> None:
        """Start two compilers, so that neither the first constraint nor one behind a slow one waits for a start."""
        self._pool.start_one()
        self._pool.start_one()

    def close(self) -> None:
        """End the compilers; whoever still waits is left without an answer."""
        for work in self._work.values():
            work.task.cancel()
        self._pool.close()

    async def compile(self, constraint: Constraint) -> Compiled:
        """The constraint, compiled now or before. Raises Refused or CompilerFailed.

        Requests with equal constraints share one compilation. Cancelling the last of them cancels what has not begun.
        """
        key = hashlib.blake2b(msgspec.msgpack.encode(constraint), digest_size=16).digest()
        kept = self._cache.get(key)
        if isinstance(kept, Compiled):
            return kept
        if kept is not None:
            raise Refused(kept)
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = _Work(asyncio.create_task(self._compile(key, constraint)))
            work.task.add_done_callback(lambda task: self._forget(key, task))
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1
            if not work.waiters and not work.begun:
                work.task.cancel()

    def _forget(self, key: bytes, task: asyncio.Task[Compiled]) -> None:
        work = self._work.get(key)
        if work is not None and work.task is task:
            del self._work[key]
        if not task.cancelled():
            task.exception()  # counts as retrieved, should nobody be left who waits for it

    async def _compile(self, key: bytes, constraint: Constraint) -> Compiled:
        done = await self._attempt(key, constraint)
        if done is None:  # its process was killed, or ran out of memory in native code
            done = await self._attempt(key, constraint)
        if done is None:
            raise self._refuse(key, "The grammar compiler crashed on it, twice.", TIMEOUT_MEMORY_SECONDS)
        if done.compiled is not None:
            self._cache.put(key, done.compiled)
            return done.compiled
        if done.refused:
            raise self._refuse(key, done.refused)
        log.error("a constraint of kind %s could not be compiled: %s", constraint.kind, done.failed)
        raise CompilerFailed(f"The constraint could not be compiled: {done.failed}.")

    async def _attempt(self, key: bytes, constraint: Constraint) -> Done | None:
        """One try; None where the process died. Raises Refused where it takes too long."""
        compiler = await self._pool.take()
        try:
            if key in self._work:
                self._work[key].begun = True
            return await compiler.compile(constraint)
        except TimeoutError:
            text = f"It takes more than {COMPILE_SECONDS:g} seconds to compile; make it simpler."
            raise self._refuse(key, text, TIMEOUT_MEMORY_SECONDS) from None
        except _CompilerDied:
            return None
        finally:
            await self._pool.give_back(compiler)

    def _refuse(self, key: bytes, text: str, seconds: float = float("inf")) -> Refused:
        self._cache.put(key, text, seconds)
        return Refused(text)
