"""The processes that compile constraints: started when they are needed, killed when one takes too long, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence

import msgspec

from ..constrained.spec import Constraint
from ..runtime.errors import SapwoodError
from .grammar_wire import HEADER_BYTES, Done, FromCompiler, Job, Setup, frame, length_of
from .logs import logger

log = logger("grammar")

COMMAND = (sys.executable, "-P", "-m", f"{__name__.rpartition('.')[0]}.grammar_compiler")
COMPILE_SECONDS = 5.0
IMPORT_SECONDS = 10.0  # more for the first constraint of a process that needs xgrammar, whose import takes seconds
START_SECONDS = 60.0
MAX_COMPILERS = 3
PATIENCE_SECONDS = 0.05  # how long a constraint waits for a busy compiler before another one is started
NICENESS = 5  # streams go first: a compiler takes what the others leave, or a quarter of a core


class CompilerFailed(SapwoodError):
    """No compiler can be started, or it has a fault; the request fails though its constraint may be right."""


class CompilerDied(Exception):
    """The process ended before it answered."""


class Compiler:
    """One compiling process. For one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input, self._output = process.stdin, process.stdout
        self._decoder = msgspec.msgpack.Decoder(FromCompiler)
        self._has_xgrammar = False
        self._over = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False as soon as its end of the pipe is closed: that shows before its death does."""
        return not (self._over or self._process.returncode is not None or self._output.at_eof())

    @classmethod
    async def start(cls, command: Sequence[str], setup: Setup) -> Compiler:
        """Start a process and wait until it can compile. Raises CompilerFailed."""
        pipe = asyncio.subprocess.PIPE
        try:
            compiler = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        except OSError as error:
            raise CompilerFailed(f"The grammar compiler cannot be started: {error}.") from None
        with contextlib.suppress(OSError, AttributeError):  # no such thing on this system
            os.setpriority(os.PRIO_PROCESS, compiler.pid, NICENESS)
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await compiler._ask(setup)
            if isinstance(answer, Done):
                raise CompilerFailed(f"The grammar compiler cannot be started: {answer.failed}.")
        except BaseException as error:
            await compiler.end()
            if isinstance(error, TimeoutError | CompilerDied):
                raise CompilerFailed("The grammar compiler did not start; the log says why.") from None
            raise
        return compiler

    async def compile(self, constraint: Constraint) -> Done:
        """Raises TimeoutError, or CompilerDied; in both cases, and where it is cancelled, the process is over."""
        imports = constraint.engine == "xgrammar" and not self._has_xgrammar
        self._has_xgrammar = self._has_xgrammar or imports
        try:
            async with asyncio.timeout(COMPILE_SECONDS + (IMPORT_SECONDS if imports else 0.0)):
                answer = await self._ask(Job(constraint))
            if not isinstance(answer, Done):
                raise CompilerDied
        except BaseException:
            await self.end()
            raise
        return answer

    async def end(self) -> None:
        """Kill the process, whatever it does, and wait until it is gone."""
        self._over = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # Process.kill would take the exit status from asyncio's watcher
        self._input.close()
        await self._process.wait()

    async def _ask(self, message: Setup | Job) -> FromCompiler:
        try:
            self._input.write(frame(message))
            await self._input.drain()
            header = await self._output.readexactly(HEADER_BYTES)
            return self._decoder.decode(await self._output.readexactly(length_of(header)))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise CompilerDied from error


class CompilerPool:
    """A few compilers. Who has to wait gets one in order of asking; where that takes a while, one more is started."""

    def __init__(self, command: Sequence[str], setup: Setup) -> None:
        """Starts nothing yet."""
        self._command = command
        self._setup = setup
        self._idle: list[Compiler] = []
        self._busy: set[Compiler] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[Compiler]] = deque()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the compilers that are ready or at work."""
        return [compiler.pid for compiler in (*self._idle, *self._busy)]

    async def grow(self, size: int) -> None:
        """Start compilers, one after the other, until there are `size` of them."""
        while len(self._idle) + len(self._busy) < size:
            before = len(self._idle) + len(self._busy)
            self._start_one()
            await asyncio.gather(*self._starting)
            if len(self._idle) + len(self._busy) <= before:
                return

    async def take(self) -> Compiler:
        """An idle compiler, to be given back. Raises CompilerFailed."""
        while self._idle:
            compiler = self._idle.pop()
            if compiler.alive:
                self._busy.add(compiler)
                return compiler
            await compiler.end()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Compiler] = loop.create_future()
        self._waiting.append(waiting)
        hurry = loop.call_later(PATIENCE_SECONDS if self._busy or self._starting else 0.0, self._start_one)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.give_back(waiting.result())
            raise
        finally:
            hurry.cancel()

    def give_back(self, compiler: Compiler) -> None:
        """Also one that is over: then another one takes its place."""
        self._busy.discard(compiler)
        if compiler.alive:
            self._offer(compiler)
        else:
            self._start_one()

    async def close(self) -> None:
        """End them all; no more are started."""
        self._closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, *map(Compiler.end, (*self._idle, *self._busy)), return_exceptions=True)

    def _offer(self, compiler: Compiler) -> None:
        """To whoever has waited longest; else it is idle."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._busy.add(compiler)
                waiting.set_result(compiler)
                return
        self._idle.append(compiler)

    def _start_one(self) -> None:
        """Start one more, unless there are enough."""
        if not self._closed and len(self._idle) + len(self._busy) + len(self._starting) < MAX_COMPILERS:
            task = asyncio.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        for last in (False, True):  # one may be killed while it starts, and the next is not
            try:
                self._offer(await Compiler.start(self._command, self._setup))
                return
            except CompilerFailed as error:
                log.warning("%s", error)
                if last and not (self._idle or self._busy):
                    self._fail(error)

    def _fail(self, error: CompilerFailed) -> None:
        """Whoever waits for a compiler waits in vain."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)
