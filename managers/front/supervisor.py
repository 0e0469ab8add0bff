"""Starts the child processes, notices when one dies, and ends them all. It never restarts one.

Nothing may be left over: neither a process nor a socket file, however the start or the stop goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import site
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from ..wire.child import RANK_LOST
from ..wire.sockets import ENVIRONMENT, WORKER, Link

CHILDREN = ("tokenizer", "scheduler", "worker")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class Supervisor:
    """The children of one engine. Also ends them when it is garbage-collected and when the interpreter exits."""

    def __init__(self, link: Link, *, threads: int) -> None:
        """threads: CPU threads of each worker; 0 leaves its choice to its libraries. Starts nothing yet."""
        self._link = link
        self._threads = threads
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._finish = weakref.finalize(self, _end, self._children, link, os.getpid())

    @property
    def pids(self) -> dict[str, int]:
        """Process id by role, for those that were started."""
        return {role: child.pid for role, child in self._children.items()}

    def start(self) -> None:
        """Start all children, side by side. Raises OSError where that is impossible; call `stop` in any case."""
        for role in (*CHILDREN, *self._link.workers[1:]):
            self._children[role] = subprocess.Popen(
                self._command(role),
                stdin=subprocess.PIPE,
                env=self._environment(role),
                process_group=0,  # a terminal's Ctrl-C goes to the parent alone
            )

    def dead(self) -> str | None:
        """A sentence about a child found dead, rather the cause than the consequence; None while all are alive."""
        codes = {role: code for role, child in self._children.items() if (code := child.poll()) is not None}
        if not codes:
            return None
        role = min(codes, key=lambda role: codes[role] == RANK_LOST)
        return f"The {role} process (pid {self._children[role].pid}) {_ending(codes[role])}."

    async def stop(self, grace: float) -> None:
        """End everything; returns within 5 seconds. May be called more than once.

        grace: seconds that the children have to end by themselves (2 at most; the front has told them to) before
        SIGTERM; one second later comes SIGKILL.
        """
        for act, patience in _ending_steps(self._children, min(grace, 2.0)):
            act()
            deadline = time.monotonic() + patience
            while self._any_alive() and time.monotonic() < deadline:  # noqa: ASYNC110 (a process's end is no event)
                await asyncio.sleep(0.02)
        self._finish.detach()
        self._link.remove()

    def _any_alive(self) -> bool:
        return any(child.poll() is None for child in self._children.values())

    @staticmethod
    def _command(role: str) -> list[str]:
        module, arguments = (WORKER, [role]) if role.startswith(WORKER) else (role, [])
        command = [sys.executable, "-P", "-m"]  # -P: what lies in the working directory is not ours
        return [*command, f"sapwood.managers.{module}", *arguments]

    def _environment(self, role: str) -> dict[str, str]:
        environment = dict(os.environ)
        environment[ENVIRONMENT] = self._link.to_environment()
        environment["TOKENIZERS_PARALLELISM"] = "false"
        if "OMP_WAIT_POLICY" not in environment:  # else a thread that others keep from its core holds up all the rest,
            environment.setdefault("GOMP_SPINCOUNT", "1000")  # who spin for milliseconds and so keep it from it longer
        threads = self._threads if role.startswith(WORKER) else 1
        if threads:
            environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        package = Path(__file__).parents[2]
        installed = (*site.getsitepackages(), site.getusersitepackages())
        if package.name == __name__.partition(".")[0] and str(package.parent) not in installed:
            paths = [environment.get("PYTHONPATH", ""), str(package.parent)]  # a child does not inherit sys.path
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}; its log says why"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _ending_steps(
    children: dict[str, subprocess.Popen[bytes]], grace: float
) -> Iterator[tuple[Callable[[], None], float]]:
    """What to do, one after the other, to end the children, and how many seconds to wait after each."""

    def terminate() -> None:
        for child in children.values():
            child.terminate()
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()

    def kill() -> None:
        for child in children.values():
            child.kill()

    yield (lambda: None), grace
    yield terminate, 1.0
    yield kill, 1.0


def _end(children: dict[str, subprocess.Popen[bytes]], link: Link, owner: int) -> None:
    """The last resort, where nobody called `stop`."""
    if os.getpid() != owner:  # a fork of the process that owns the children
        return
    for act, patience in _ending_steps(children, 0.0):
        act()
        deadline = time.monotonic() + patience
        for child in children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
    link.remove()
