"""Compiled constraints for the tokenizer process: each compiled once, in processes of their own, off the event loop.

A constraint can be anything that a stranger wrote. It must never hold up the loop, nor another request for longer than
it takes another compiler to be free: what takes too long is killed with its process, and the answer is a refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....constrained.spec import Compiled, Constraint, constraint_key
from ....runtime.errors import SapwoodError
from ...wire.logs import logger
from .pipe import Done, Setup
from .pool import COMMAND, COMPILE_SECONDS, CompilerDied, CompilerFailed, CompilerPool, MadeWay

log = logger("grammar")

WARM_COMPILERS = 2  # so that neither the first constraint nor one behind a slow one waits for a start
MEMORY_BYTES = 2**30
ATTEMPTS = 3  # a compiler may die for other reasons than what it compiles, and so may the next, before it shows
CACHE_ENTRIES = 1024
CACHE_BYTES = 64 * 2**20
SLOW_SECONDS = 60.0  # how long a constraint that took too long, or crashed a compiler, is refused untried
_ENTRY_BYTES = 1024  # what an entry of the cache takes beside its payload


class Refused(SapwoodError):
    """The constraint cannot be compiled, in one sentence for its user."""


@dataclass(frozen=True)
class _KnownGrammar:
    """An outcome that is kept: compiled, or why not. expires: the monotonic time from which it counts no more."""

    outcome: Compiled | str
    size: int
    expires: float


class _Cache:
    """Outcomes by key; the least recently used go first. Bounded in number and in bytes."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _KnownGrammar] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> Compiled | str | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.outcome

    def put(self, key: str, outcome: Compiled | str, seconds: float = float("inf")) -> None:
        size = len(outcome) if isinstance(outcome, str) else len(outcome.payload) + len(outcome.checks)
        if key in self._entries:
            self._drop(key)
        self._entries[key] = _KnownGrammar(outcome, _ENTRY_BYTES + size, time.monotonic() + seconds)
        self._bytes += _ENTRY_BYTES + size
        while len(self._entries) > CACHE_ENTRIES or (self._bytes > CACHE_BYTES and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        self._bytes -= self._entries.pop(key).size


class _Compilation:
    """A constraint that is being compiled, or waits for a compiler, for so many requests."""

    def __init__(self) -> None:
        self.waiters = 0
        self.begun = False
        self.task: asyncio.Task[Compiled] | None = None


class GrammarService:
    """Compiles constraints for one model. Everything in one event loop."""

    def __init__(self, model_path: Path, command: Sequence[str] = COMMAND) -> None:
        """Starts nothing yet."""
        self._pool = CompilerPool(command, Setup(str(model_path), MEMORY_BYTES))
        self._cache = _Cache()
        self._work: dict[str, _Compilation] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the compilers."""
        return self._pool.pids

    async def warm(self) -> None:
        """Start compilers before they are needed."""
        await self._pool.grow(WARM_COMPILERS)

    async def close(self) -> None:
        """End the compilers; whoever still waits is left without an answer."""
        tasks = [work.task for work in self._work.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    async def compile(self, constraint: Constraint) -> Compiled:
        """The constraint, compiled now or before. Raises Refused or CompilerFailed.

        Requests with equal constraints share one compilation. Cancelling the last of them cancels what has not begun.
        """
        key = constraint_key(constraint)
        kept = self._cache.get(key)
        if isinstance(kept, Compiled):
            return kept
        if kept is not None:
            raise Refused(kept)
        work = self._work.get(key)
        if work is None or work.task is None:
            work = self._work[key] = _Compilation()
            work.task = asyncio.create_task(self._compile(key, constraint, work))
            work.task.add_done_callback(_retrieve)
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1
            if not work.waiters and not work.begun:
                work.task.cancel()
                self._forget(key, work)

    async def _compile(self, key: str, constraint: Constraint, work: _Compilation) -> Compiled:
        done, attempts, slow = None, 0, False
        try:
            while done is None and attempts < ATTEMPTS:
                try:
                    done = await self._attempt(key, constraint, work, slow)
                    attempts += 1
                except MadeWay:
                    slow = True
        finally:
            self._forget(key, work)
        if done is None:
            text = "It crashed the grammar compiler again and again, or takes too much memory to compile."
            raise self._refusal(key, text, SLOW_SECONDS)
        if done.compiled is not None:
            self._cache.put(key, done.compiled)
            return done.compiled
        if done.refused:
            raise self._refusal(key, done.refused)
        log.error("a constraint of kind %s could not be compiled: %s", constraint.kind, done.failed)
        raise CompilerFailed(f"The constraint could not be compiled: {done.failed}.")

    async def _attempt(self, key: str, constraint: Constraint, work: _Compilation, slow: bool) -> Done | None:
        """One try; None where the process died. Raises Refused where it takes too long, or MadeWay."""
        compiler = await self._pool.take(len(constraint.body), slow=slow)
        try:
            work.begun = True
            return await compiler.compile(constraint, key)
        except TimeoutError:
            text = f"It takes more than {COMPILE_SECONDS:g} seconds to compile; make it simpler."
            raise self._refusal(key, text, SLOW_SECONDS) from None
        except CompilerDied:
            return None
        finally:
            self._pool.give_back(compiler)

    def _refusal(self, key: str, text: str, seconds: float = float("inf")) -> Refused:
        self._cache.put(key, text, seconds)
        return Refused(text)

    def _forget(self, key: str, work: _Compilation) -> None:
        if self._work.get(key) is work:
            del self._work[key]


def _retrieve(task: asyncio.Task[Compiled]) -> None:
    """So that asyncio does not complain of an error for which nobody is left to wait."""
    if not task.cancelled():
        task.exception()
