"""What the server can be asked: each endpoint declared once. Routes, error forms, help and the OpenAPI document derive
from the declarations, which stand beside the handlers and are gathered in `app`.

It must know no handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from .errors import ErrorShape, openai_error

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path, in aiohttp's notation (`/v1/models/{id:.+}`).

    summary: what it is for, in a phrase. body: what it takes, None for nothing. answer: what a success has in its
    body, None for no JSON (then `media` says what). event: of what its stream is made, None where it has none.
    error: the form of its errors. stream_media: what a stream is called. status: what its answers always have; another
    than 200 where it is there only to say that it is not supported. needs_body: whether a body must be sent.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    event: object = None
    error: ErrorShape = openai_error
    media: str = "application/json"
    stream_media: str = "text/event-stream"
    status: int = 200
    needs_body: bool = True

    @property
    def tolerant_path(self) -> str:
        """The path as a pattern that also has doubled and trailing slashes, and may lack `/v1` or have it twice: what
        comes of a base address and a path put together in haste."""
        steps = self.path.strip("/").split("/")
        version = "{_v:(?:v1/+)*}" if steps[0] == "v1" else ""
        steps = steps[1:] if version else steps
        gaps = "".join(f"{{_{i}:/+}}{step}" for i, step in enumerate(steps))
        return f"/{{_:/*}}{version}{gaps.removeprefix('{_0:/+}')}{{_end:/*}}"
