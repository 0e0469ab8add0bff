"""JSON responses, encoded by msgspec."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web


def json_response(value: Any, request_id: str | None = None) -> web.Response:
    """A successful answer; `request_id`, where there is one, goes into the header that OpenAI's clients read."""
    headers = {"X-Request-Id": request_id} if request_id is not None else None
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)
