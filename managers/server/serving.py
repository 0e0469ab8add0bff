"""One server from bind to exit: the port is taken first, the model is loaded behind it, and everything ends in order.

It must never leave a child process or the port behind, nor an open request without an answer.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from ...runtime.errors import SapwoodError
from ..front.front import Front
from ..wire.logs import logger
from .app import make_runner
from .server_state import ServerState

log = logger("server")

_BACKLOG = 1024
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PortTaken(SapwoodError):
    """The address cannot be listened on; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. A port that was just given up can be taken at once. Raises PortTaken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortTaken(f"Port {port} on {host} is in use; choose another with --port.") from None
        reason = getattr(error, "strerror", None) or error
        raise PortTaken(f"Cannot listen on {host}:{port}: {reason}. Choose another --host or --port.") from None


def address_of(listener: socket.socket) -> str:
    """The URL under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server:
    """Serves one front on one listening socket."""

    def __init__(
        self,
        front: Front,
        model: str,
        listener: socket.socket,
        on_ready: Callable[[ServerState], None],
        **settings: Any,
    ) -> None:
        """on_ready: called once requests can be served. settings: those of `ServerState`."""
        self.state = ServerState(front, model, **settings)
        self._front = front
        self._listener = listener
        self._on_ready = on_ready
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT (exit code 0), or until the engine dies or cannot start (exit code 1)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.set_exception_handler(_Complaints())
        runner = make_runner(self.state)
        await runner.setup()
        site = web.SockSite(runner, self._listener, backlog=_BACKLOG)
        await site.start()
        try:
            return await self._serve()
        finally:
            await site.stop()
            await self._front.stop()  # open requests end with an error, which their handlers still send
            await runner.cleanup()

    def stop(self) -> None:
        """Ask the server to end, as SIGTERM does."""
        if self.state.phase != "dead":
            self.state.set_phase("stopping", "The server is shutting down.")
        self._stop.set()

    async def _serve(self) -> int:
        try:
            if not await self._unless_stopped(self._front.start()):
                return 0
        except SapwoodError as error:
            self.state.set_phase("dead", str(error))
            log.error("cannot start: %s", error)
            return 1
        self.state.set_phase("ready", "")
        self._on_ready(self.state)
        if not await self._unless_stopped(self._died()):
            log.info("stopping")
            return 0
        return 1

    async def _died(self) -> None:
        sentence = await self._front.wait_dead()
        self.state.set_phase("dead", sentence)
        log.error("the engine is dead: %s", sentence)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` to its end (True), or cancel it when the server is asked to stop (False)."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False


class _Complaints:
    """An event loop's exception handler. A lack of file descriptors, which the loop reports once for every waiting
    connection (asyncio, Python 3.11), is one line per second."""

    def __init__(self) -> None:
        self._last = -1.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif loop.time() >= self._last + 1:
            self._last = loop.time()
            log.error("cannot accept connections: %s", error.strerror)
