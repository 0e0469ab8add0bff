"""The processes that compile constraints: started when they are needed, killed when one takes too long, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from ....constrained.spec import COMPILE_SECONDS, Constraint
from ....runtime.errors import SapwoodError
from ...wire.logs import logger
from .pipe import HEADER_BYTES, Done, FromCompiler, Job, Setup, frame, length_of
from .queue import Asked, GrammarQueue

log = logger("grammar")

COMMAND = (sys.executable, "-P", "-m", f"{__name__.rpartition('.')[0]}.compiler_process")
IMPORT_SECONDS = 10.0  # more for the first constraint of a process that needs xgrammar, whose import takes seconds
START_SECONDS = 60.0
MAX_COMPILERS = 3
QUICK_SECONDS = 0.2  # most constraints take far less; who takes longer may have to make way for a smaller one,
SLOW_SECONDS = 1.0  # and who takes this long for any other (which costs the start of a compiler)
PATIENCE_SECONDS = 0.05  # how long a constraint waits for a busy compiler before another one is started
NICENESS = 5  # streams go first: a compiler takes what the others leave, or a quarter of a core


class CompilerFailed(SapwoodError):
    """No compiler can be started, or it has a fault; the request fails though its constraint may be right."""


class CompilerDied(Exception):
    """The process ended before it answered."""


class MadeWay(Exception):
    """The process was ended for others' sake; the constraint is to be compiled again, as one that is known as slow."""


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
        self.made_way = False
        self.is_slow = False  # what it compiles is known to be slow
        self.size = 0
        self.began = 0.0

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

    async def compile(self, constraint: Constraint, key: str) -> Done:
        """Raises TimeoutError, CompilerDied or MadeWay; then, and where it is cancelled, the process is over."""
        imports = constraint.engine == "xgrammar" and not self._has_xgrammar
        self._has_xgrammar = self._has_xgrammar or imports
        try:
            async with asyncio.timeout(COMPILE_SECONDS + (IMPORT_SECONDS if imports else 0.0)):
                answer = await self._ask(Job(constraint, key))
            if not isinstance(answer, Done):
                raise CompilerDied
        except BaseException as error:
            await self.end()
            if self.made_way and isinstance(error, CompilerDied):
                raise MadeWay from None
            raise
        return answer

    def make_way(self) -> None:
        """Kill the process; what it compiles is to be compiled later."""
        self.made_way = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

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
    """A few compilers. Who has to wait is in a `GrammarQueue`; where that takes a while, one more is started.

    One of them is never at a constraint that is known as slow. Where all are busy for longer than a quick one takes and
    others wait who are not known as slow, a spare one is started for them, and for that the last to begin makes way:
    once, then it is known as slow.
    """

    def __init__(self, command: Sequence[str], setup: Setup) -> None:
        """Starts nothing yet."""
        self._command = command
        self._setup = setup
        self._idle: list[Compiler] = []
        self._busy: set[Compiler] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._queue: GrammarQueue[Compiler] = GrammarQueue()
        self._way: asyncio.TimerHandle | None = None
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
            if self._starting:
                await asyncio.wait(self._starting)  # cancelled, it does not cancel them: `close` does, and waits
            if len(self._idle) + len(self._busy) <= before:
                return

    async def take(self, size: int = 0, *, slow: bool = False) -> Compiler:
        """An idle compiler, to be given back. Raises CompilerFailed.

        size: of the constraint. slow: whether it has made way before.
        """
        while self._idle and not (slow and self._slow_ones_are_enough()):
            compiler = self._idle.pop()
            if compiler.alive:
                self._occupy(compiler, size, slow)
                return compiler
            await compiler.end()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Compiler] = loop.create_future()
        self._queue.add(Asked(waiting, size, slow))
        hurry = loop.call_later(PATIENCE_SECONDS if self._busy or self._starting else 0.0, self._start_one)
        self._look_for_a_way()
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
        if self._way is not None:
            self._way.cancel()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, *map(Compiler.end, (*self._idle, *self._busy)), return_exceptions=True)

    def _offer(self, compiler: Compiler) -> None:
        """To whoever waits and is next; else it is idle."""
        asked = self._queue.take(with_slow=not self._slow_ones_are_enough())
        if asked is None:
            self._idle.append(compiler)
            return
        self._occupy(compiler, asked.size, asked.is_slow)
        asked.waiting.set_result(compiler)
        self._look_for_a_way()

    def _occupy(self, compiler: Compiler, size: int, slow: bool) -> None:
        compiler.size = size
        compiler.is_slow = slow
        compiler.began = asyncio.get_running_loop().time()
        self._busy.add(compiler)

    def _slow_ones_are_enough(self) -> bool:
        return sum(compiler.is_slow for compiler in self._busy) >= max(1, MAX_COMPILERS - 1)

    def _look_for_a_way(self) -> None:
        """See to it that who waits, and is not known as slow, need not wait until all that is slow is done."""
        if self._way is not None:
            self._way.cancel()
            self._way = None
        smallest = self._queue.smallest_fresh
        if self._closed or smallest is None or not 1 < MAX_COMPILERS == len(self._busy):
            return
        last = max((each for each in self._busy if not each.is_slow), key=lambda compiler: compiler.began)
        loop = asyncio.get_running_loop()
        left = last.began + (QUICK_SECONDS if smallest < last.size else SLOW_SECONDS) - loop.time()
        if left > 0:
            self._way = loop.call_later(left, self._look_for_a_way)
        else:
            self._start_one(spare=True)

    def _start_one(self, *, spare: bool = False) -> None:
        """Start one more, unless there are enough. spare: for a place that another one will have to leave."""
        there = len(self._idle) + len(self._busy) + len(self._starting)
        if not self._closed and there < MAX_COMPILERS + spare:
            task = asyncio.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        for last in (False, True):  # one may be killed while it starts, and the next is not
            try:
                compiler = await Compiler.start(self._command, self._setup)
                self._offer(compiler)
                await self._retire_one(compiler)
                return
            except CompilerFailed as error:
                log.warning("%s", error)
                if last and not (self._idle or self._busy):
                    self._fail(error)

    async def _retire_one(self, new: Compiler) -> None:
        """Where a spare one has come, another one goes: best one that is idle, else the last to begin."""
        if len(self._idle) + len(self._busy) <= MAX_COMPILERS:
            return
        if self._idle:
            await self._idle.pop().end()
        else:
            others = (each for each in self._busy if each is not new and not each.is_slow)
            max(others, key=lambda compiler: compiler.began).make_way()

    def _fail(self, error: CompilerFailed) -> None:
        """Whoever waits for a compiler waits in vain."""
        while (asked := self._queue.take(with_slow=True)) is not None:
            asked.waiting.set_exception(error)
