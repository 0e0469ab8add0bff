"""The body of a request, and what it says. A client that sends slowly, or very much, must hold up nobody else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from ..front.requests.bodies import decode_tolerant
from ..front.side_thread import in_thread
from .server_state import STATE

MAX_BODY_BYTES = 16 * 2**20
LARGE_BODY_BYTES = 256 * 1024  # decoding and checking more may take long; that is done in a thread, one at a time

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


def _key(name: str) -> Any:
    """For what is kept with a request; aiohttp had plain text for that before 3.14."""
    return web.RequestKey(name, object) if hasattr(web, "RequestKey") else name


IGNORED = _key("ignored")
"""Key of a request: the fields of its body that have no effect: the answer's header lists them."""
SPELLED = _key("spelled")
"""Key of a request: the names that its body has for fields which its struct calls otherwise; errors use these."""


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises HTTPException where it is too large, is not HTTP, or where nothing comes for too long."""
    parts: list[bytes] = []
    size = 0
    while not request.content.at_eof():
        try:
            async with asyncio.timeout(request.app[STATE].stall_seconds):
                parts.append(await request.content.readany())
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(max_size=MAX_BODY_BYTES, actual_size=size)
    return b"".join(parts)


async def understand(request: web.Request, struct: type[S], function: Callable[[S], T], data: bytes | None = None) -> T:
    """What `function`, which needs no event loop, makes of the request's body. Raises InvalidRequest for what is no
    `struct`, and what `function` raises. What the struct tolerates is left out, and listed in the answer's header.

    data: the body, where it was read before."""
    data = await read_body(request) if data is None else data

    def understood(data: bytes) -> T:
        body, request[IGNORED], request[SPELLED] = decode_tolerant(data, struct)
        return function(body)

    if len(data) <= LARGE_BODY_BYTES:
        return understood(data)
    async with request.app[STATE].large_bodies:
        return await in_thread(lambda: _without_collecting(understood, data))


def _without_collecting(function: Callable[[bytes], T], data: bytes) -> T:
    """Of millions of new objects the garbage collector would look at each again and again, and let no thread run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return function(data)
    finally:
        if was_enabled:
            gc.enable()
