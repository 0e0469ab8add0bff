"""JSON responses, encoded by msgspec, and the headers that are found out while a request is answered."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import msgspec
from aiohttp import web

from ..wire.answers import MovedLine

_headers: ContextVar[dict[str, str] | None] = ContextVar("headers", default=None)


def begin_headers() -> None:
    """From here on the current task, and those that it starts, answer another request."""
    _headers.set({})


def note_headers(headers: Mapping[str, str]) -> None:
    """The request's answer gets these headers, unless its head is out already."""
    noted = _headers.get()
    if noted is not None:
        noted.update(headers)


def noted_headers() -> dict[str, str]:
    """What was noted since `begin_headers`."""
    return _headers.get() or {}


def note_moved(moved: list[MovedLine]) -> None:
    """Say in the headers how many lines `--stable-prefix` moved or dropped, and what they were."""
    for kind, lines in (
        ("Moved", [each for each in moved if each.to is not None]),
        ("Dropped", [each for each in moved if each.to is None]),
    ):
        if lines:
            rules = ", ".join(dict.fromkeys(each.rule for each in lines))
            note_headers({f"X-Sapwood-{kind}-Lines": str(len(lines)), f"X-Sapwood-{kind}-Kinds": rules})


def json_response(value: Any, request_id: str | None = None) -> web.Response:
    """A successful answer; `request_id`, where there is one, goes into the header that OpenAI's clients read."""
    headers = {"X-Request-Id": request_id} if request_id is not None else None
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)
