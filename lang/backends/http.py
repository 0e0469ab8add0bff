"""A small JSON client: one pool of connections per backend, errors as exceptions, server-sent events as an iterator."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from ...managers.wire.errors import InvalidRequest, Overloaded, RequestAborted
from ...runtime.errors import SapwoodError
from ..errors import BackendError
from ..running.loop import LoopThread, in_event_loop, loop_thread

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 256  # more requests than this wait for one, in order
_BUSY = (429, 503, 529)


class HttpClient:
    """Talks to one server. Used in the loop of `loop_thread` only; `close` may be called from anywhere."""

    def __init__(self, base_url: str, headers: dict[str, str] | None = None, timeout: float = 600.0) -> None:
        """timeout: seconds without a byte after which a server counts as gone. Raises BackendError for no URL."""
        if not base_url.startswith(("http://", "https://")):
            raise BackendError(f"{base_url!r} is no address; it must start with http:// or https://.")
        self.base_url = base_url.rstrip("/")
        self._headers = headers or {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=timeout)
        self._sessions: dict[LoopThread, aiohttp.ClientSession] = {}
        self._finalizer = weakref.finalize(self, _close, self._sessions)

    async def get(self, path: str) -> bytes:
        """The body of a successful answer."""
        async with self._request("GET", path, None) as response:
            return await response.read()

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of a successful answer. Raises InvalidRequest, Overloaded, RequestAborted or BackendError."""
        async with self._request("POST", path, body) as response:
            return await response.read()

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The data of each server-sent event, up to `[DONE]` or the end. Raises as `post`."""
        async with self._request("POST", path, body) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    _raise_event_error(self.base_url, data)
                    yield data

    def close(self) -> None:
        """Close the connections; the client opens new ones if it is used again."""
        _close(self._sessions)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._session().request(method, self.base_url + path, data=data, headers=headers) as response:
                if response.status >= 400:
                    raise _error(self.base_url + path, response.status, await response.read())
                yield response
        except TimeoutError:
            raise BackendError(f"{self.base_url} did not answer in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"No answer from {self.base_url}: {error or type(error).__name__}.") from error

    def _session(self) -> aiohttp.ClientSession:
        thread = loop_thread()
        session = self._sessions.get(thread)
        if session is None or session.closed:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS)
            # A line of an event stream may be as long as an answer with all its log-probabilities.
            session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=self._timeout, read_bufsize=2**24
            )
            self._sessions[thread] = session
        return session


def _close(sessions: dict[LoopThread, aiohttp.ClientSession]) -> None:
    thread = loop_thread()
    session = sessions.pop(thread, None)
    sessions.clear()
    if session is None:
        return
    closing = thread.submit(session.close())
    if not in_event_loop():
        closing.result(CONNECT_SECONDS)


def _raise_event_error(url: str, data: bytes) -> None:
    """An error within a stream is an event with an `error` in it."""
    if b'"error"' in data[:200]:
        found = msgspec.json.decode(data)
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            code = found["error"].get("code")
            status = {"overloaded": 503, "invalid_value": 400, "request_aborted": 409}.get(code, 500)
            raise _error(url, status, data)


def _error(url: str, status: int, body: bytes) -> SapwoodError:
    """The exception for an error answer, whose body OpenAI's and Anthropic's APIs give in the same form."""
    message, field = body[:500].decode("utf-8", "replace"), None
    try:
        detail = msgspec.json.decode(body)["error"]
        message, field = str(detail["message"]), detail.get("param")
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    if status in (400, 422):
        return InvalidRequest(message, field)
    if status in _BUSY:
        return Overloaded(message)
    if status == 409:
        return RequestAborted(message)
    return BackendError(f"{url} answered {status}: {message}")
