"""The HTTP application: its routes, and the one place where whatever goes wrong becomes a JSON error."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...runtime.errors import SapwoodError
from ..front.requests.bodies import respelled
from ..wire.errors import InvalidRequest
from ..wire.logs import logger
from . import admin
from .connection import ServerRunner
from .endpoints import Endpoint, Handler
from .errors import UnknownPath, answer_for, openai_error
from .messages_api import message_routes
from .native import render, routes, tokens
from .native.openapi import openapi_endpoint
from .ollama_api import ollama_models, ollama_routes
from .openai import routes as openai_routes
from .reading import IGNORED, MAX_BODY_BYTES, SPELLED
from .responses import begin_headers, noted_headers
from .responses_api import responses_routes
from .server_state import STATE, ServerState

log = logger("server")

_BATCHES = re.compile(r"/*(v1/+)?(batches|files)(/|$)")
LAST_ANSWERS_SECONDS = 0.5  # at shutdown, for handlers to send their last event once their streams have ended
_DESCRIBED: tuple[Endpoint, ...] = (
    *openai_routes.ENDPOINTS,
    *responses_routes.ENDPOINTS,
    *message_routes.ENDPOINTS,
    *ollama_routes.ENDPOINTS,
    *ollama_models.ENDPOINTS,
    *routes.ENDPOINTS,
    *render.ENDPOINTS,
    *tokens.ENDPOINTS,
    *admin.ENDPOINTS,
)
ENDPOINTS = (*_DESCRIBED, openapi_endpoint(_DESCRIBED))
_ENDPOINTS: web.AppKey[dict[str, Endpoint]] = web.AppKey("endpoints", dict)
"""By a resource's canonical path (of several methods at one path, one)."""


def make_runner(state: ServerState) -> web.AppRunner:
    """Runs the application around a state."""
    http_log = logger("server.http")
    http_log.addFilter(_one_line)
    return ServerRunner(
        _make_app(state),
        state.head_seconds,
        logger=http_log,
        access_log=None,  # `Work` logs one line for each request
        handler_cancellation=True,  # without it an answer that is not streamed would be computed for nobody
        auto_decompress=False,  # see _check_body
        shutdown_timeout=LAST_ANSWERS_SECONDS,
    )


def _one_line(record: logging.LogRecord) -> bool:
    """A logging filter. What is not even HTTP is worth a line to aiohttp's log, but no traceback.

    Of a client that is gone, the request's own line tells; of a broken body, its answer.
    """
    if record.exc_info and isinstance(record.exc_info[1], ConnectionError | web.RequestPayloadError):
        return False
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        reason = " ".join(str(record.exc_info[1]).split())
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {reason}", (), None
    return True


def _make_app(state: ServerState) -> web.Application:
    app = web.Application(middlewares=[_answer_errors], client_max_size=MAX_BODY_BYTES)
    app[STATE] = state
    responses_routes.add_store(app, state.response_limits)
    exact = app.add_routes([web.route(each.method, each.path, each.handler) for each in ENDPOINTS])
    tolerant = app.add_routes([web.route(each.method, each.tolerant_path, each.handler) for each in ENDPOINTS])
    app.on_response_prepare.extend((_list_ignored, _add_noted, _admit_origin))
    added = zip((*tolerant, *exact), ENDPOINTS * 2)
    app[_ENDPOINTS] = {cast(web.AbstractResource, route.resource).canonical: each for route, each in added}
    return app


async def _list_ignored(request: web.Request, response: web.StreamResponse) -> None:
    """Every answer, streamed ones too, says which fields of the body had no effect; so does a metric."""
    names: tuple[str, ...] = request.get(IGNORED, ())
    if names and response.status < 400:
        response.headers["X-Sapwood-Ignored-Fields"] = ", ".join(names)
        for name in names:
            request.app[STATE].metrics.ignored_fields.labels(name).inc()


async def _add_noted(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(noted_headers())


async def _admit_origin(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(request.app[STATE].origins.admit(request.headers))


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    state = request.app[STATE]
    resource = request.match_info.route.resource
    declared = request.app[_ENDPOINTS].get(resource.canonical) if resource is not None else None
    endpoint, shape = (declared.path, declared.error) if declared is not None else ("other", openai_error)
    status = "disconnected"
    begin_headers()
    try:
        state.access.admit(request.method, request.path, request.headers)
        _check_body(request)
        response = _preflight(request) or await handler(request)
        status = str(response.status)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except web.HTTPNotFound:
        status = "404"
        response = answer_for(_unknown_path(request.path)).response(shape)
    except Exception as error:
        if isinstance(error, InvalidRequest):
            error = respelled(error, request.get(SPELLED, {}))
        if not isinstance(error, SapwoodError | web.HTTPException):
            log.exception("%s failed", endpoint)
        response = answer_for(error, stopping=state.phase == "stopping").response(shape)
        status = str(response.status)
    finally:
        state.metrics.answers.labels(endpoint, status).inc()
    return response


def _preflight(request: web.Request) -> web.Response | None:
    """The answer to a browser that asks before it lets a page's script ask; None for any other request."""
    refusal = request.match_info.http_exception
    if request.method != "OPTIONS" or not isinstance(refusal, web.HTTPMethodNotAllowed):
        return None
    headers = request.app[STATE].origins.preflight(request.headers, refusal.allowed_methods)
    return web.Response(status=204, headers=headers) if headers else None


def _unknown_path(path: str) -> UnknownPath:
    if _BATCHES.match(path):
        return UnknownPath("Files and batches are not kept on the server; `sapwood batch FILE` answers a batch file.")
    endpoints = sorted({each.path for each in ENDPOINTS})
    return UnknownPath(f"There is nothing at this path; the endpoints are {', '.join(endpoints)}.")


def _check_body(request: web.Request) -> None:
    """Refuse a body by its headers, before any of it is read; one of unknown length is cut off while it is read.

    Compressed bodies are not taken: nobody's client sends them, and a small one can hold a very large one.
    """
    length = request.content_length
    if length is not None and length > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(max_size=MAX_BODY_BYTES, actual_size=length)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType
