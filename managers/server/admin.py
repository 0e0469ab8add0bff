"""The endpoints about the server itself: health, models, metrics, flushing the cache, aborting a request."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ...runtime.errors import SapwoodError
from ..front.requests.bodies import decode_body
from ..wire.questions import Stats
from .endpoints import Endpoint
from .errors import Answer, ErrorDetail, UnknownModel
from .reading import read_body
from .responses import json_response
from .server_state import STATE, ServerState


class ServedThinking(msgspec.Struct, frozen=True):
    """How the model marks what it thinks before it answers, what a request can say of it (whether to, how hard), and
    whether its template leaves it in later turns: where not, those read the answers after it anew."""

    marks: str | None
    takes_switch: bool
    takes_effort: bool
    keeps_earlier: bool


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """max_model_len: most tokens of prompt + completion. thinking: only where it does. sampling_defaults: how tokens
    are chosen where a request does not say, and whose recommendation that is."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sapwood"
    max_model_len: int
    sampling_defaults: dict[str, float | str]
    thinking: ServedThinking | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ServedModel]


class Readiness(msgspec.Struct, frozen=True):
    """status: "ready"; until then the answer is an error."""

    status: str


class Freed(msgspec.Struct, frozen=True):
    """freed_tokens: how many slots of the KV pool were given back."""

    freed_tokens: int


class Aborted(msgspec.Struct, frozen=True):
    request_id: str
    aborted: bool


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """request_id: as given with the request, or as the answer's id (header X-Request-Id) says."""

    request_id: str


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that has nothing to say: absent, or `{}`."""


async def health(request: web.Request) -> web.Response:
    """GET /health: 200 once requests can be served; 503, saying why, before and after."""
    request.app[STATE].require_ready()
    return json_response(Readiness("ready"))


async def models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    state = request.app[STATE]
    return json_response(ModelList(data=[_model(state, name) for name in state.model_names]))


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}."""
    state = request.app[STATE]
    name = request.match_info["id"].rstrip("/")
    if name not in state.model_names:
        raise UnknownModel(f"The model {name!r} is not served here; see /v1/models.")
    return json_response(_model(state, name))


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics, in Prometheus's text form. Works in every phase; without an engine the books are left out."""
    state = request.app[STATE]
    text = state.metrics.render(await _stats(state), state.front.dropped_frames)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def flush_cache(request: web.Request) -> web.Response:
    """POST /flush_cache: forget every cached prefix that no running request uses."""
    front = request.app[STATE].require_ready()
    decode_body(await read_body(request) or b"{}", EmptyBody)
    return json_response(Freed(await front.flush_cache()))


async def abort(request: web.Request) -> web.Response:
    """POST /abort: end an open request; its sender gets an error. 404 where none of that id is open."""
    state = request.app[STATE]
    state.require_ready()
    body = decode_body(await read_body(request), AbortBody)
    if not state.abort(body.request_id):
        message = f"No request with request_id {body.request_id!r} is open."
        return Answer(404, ErrorDetail(message, "invalid_request_error", "request_id", "request_not_found")).response()
    return json_response(Aborted(body.request_id, True))


def _model(state: ServerState, name: str) -> ServedModel:
    info = state.require_ready().info
    told, thinking = info.reasoning, msgspec.UNSET
    if told.thinks:
        thinking = ServedThinking(told.marks or None, told.takes_switch, told.takes_effort, told.keeps_earlier)
    return ServedModel(
        id=name,
        created=state.created,
        max_model_len=info.max_context,
        sampling_defaults={"source": info.sampling.source, **info.sampling.values()},
        thinking=thinking,
    )


async def _stats(state: ServerState) -> Stats | None:
    if state.phase != "ready":
        return None
    try:
        return await state.front.stats()
    except (SapwoodError, TimeoutError):
        return None


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "What is served", answer=ModelList),
    Endpoint("GET", "/v1/models/{id:.+}", model, "One model", answer=ServedModel),
    Endpoint("GET", "/health", health, "Whether requests can be served", answer=Readiness),
    Endpoint("GET", "/metrics", metrics, "Counts and times, for Prometheus", media="text/plain"),
    Endpoint(
        "POST",
        "/flush_cache",
        flush_cache,
        "Forget every cached prefix that is not in use",
        EmptyBody,
        Freed,
        needs_body=False,
    ),
    Endpoint("POST", "/abort", abort, "End an open request", AbortBody, Aborted),
)
