"""The native endpoint /render: what the model's chat template makes of a conversation."""

from __future__ import annotations

from aiohttp import web

from ...front.requests.render import Rendering, RenderRequest, render_to_chat
from ...wire.requests import Chat
from ..endpoints import Endpoint
from ..reading import understand
from ..responses import json_response, note_moved
from ..server_state import STATE


class RenderBody(RenderRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of /render: see `managers.front.requests.render.RenderRequest` for the other fields."""

    model: str | None = None


async def render(request: web.Request) -> web.Response:
    """POST /render."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: RenderBody) -> Chat:
        state.check_model(body.model)
        return render_to_chat(body, vocab_size=front.info.model.vocab_size)

    rendered = await front.render(await understand(request, RenderBody, understood))
    note_moved(rendered.moved)
    return json_response(Rendering(rendered.prompt, rendered.text))


ENDPOINTS = (
    Endpoint("POST", "/render", render, "What the chat template makes of a conversation", RenderBody, Rendering),
)
