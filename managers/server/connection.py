"""One client's connection, as aiohttp has it, with what a server among strangers needs beside that.

What is not HTTP is answered with the API's own JSON error, and a request's head must be there within a bound. It must
never end a connection on which a request is being answered, nor one that is idle between two requests.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from aiohttp import web

from .errors import Answer, answer_for, bad_http

_LATE = "The request's head did not arrive within {:g} seconds."


class ServerRunner(web.AppRunner):
    """Runs an application on such connections."""

    def __init__(self, app: web.Application, head_seconds: float, **options: Any) -> None:
        """head_seconds: from a head's first byte (of a connection's first request: from its opening) to its last.
        options: those of `web.AppRunner`."""
        super().__init__(app, **options)
        self._head_seconds = head_seconds

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _ConnectionFactory(made, self._head_seconds)


class _ConnectionFactory(web.Server):
    """The factory of connections: another server's twin."""

    def __init__(self, twin: web.Server, head_seconds: float) -> None:
        self.__dict__.update(vars(twin))
        self._head_seconds = head_seconds

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._head_seconds, loop=self._loop, **self._kwargs)


class Connection(web.RequestHandler):
    """Reads requests from one client and answers them, one after the other."""

    __slots__ = ("_head_seconds", "_head_timer", "_spoke")

    def __init__(self, server: web.Server, head_seconds: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        request = self._current_request
        if self._messages and request is not None and not request.content.is_eof():
            # what comes before a body's end can only be the parser's complaint; whoever reads it would wait for ever
            request.content.set_exception(web.RequestPayloadError())
        waiter = self._waiter  # of whoever waits for a whole head
        if waiter is None or waiter.done():
            self._stop_waiting()
        elif data:
            self._spoke = True
            self._await_head()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What aiohttp answers where no handler could: in the API's form. The connection ends with it."""
        super().handle_error(request, status, exc, message)  # logs, and raises where an answer has begun
        answer = bad_http(message or "") if status < 500 else answer_for(exc or RuntimeError())
        response = answer.response()
        response.force_close()
        return response

    async def finish_response(
        self, request: Any, resp: Any, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Also for refusals that aiohttp raises outside the application's reach."""
        if isinstance(resp, web.HTTPException):
            resp = answer_for(resp).response()
        return await super().finish_response(request, resp, start_time)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._head_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        self._spoke = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """The head is late: say so to whoever has begun one, and close."""
        self._head_timer = None
        if self.transport is not None and self._spoke:
            self.transport.write(_raw(bad_http(_LATE.format(self._head_seconds), 408)))
        self.force_close()


def _raw(answer: Answer) -> bytes:
    """An answer as it travels."""
    body = answer.body()
    lines = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
