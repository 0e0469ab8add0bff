"""The endpoints of /v1/responses. A request is checked whole before any of it is submitted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from ...front.requests.params import to_submit
from ...wire.answers import TextChunk
from ...wire.errors import InvalidRequest
from ...wire.requests import Submit
from ..endpoints import Endpoint
from ..errors import Answer
from ..events import NAMED_EVENTS, stream_events
from ..extension import Extensions
from ..reading import understand
from ..responses import json_response
from ..server_state import STATE, ServerState
from ..work import Work
from .response_bodies import ResponseBody
from .response_building import ResponseBuilder
from .response_objects import ResponseObject
from .response_tools import ToolSet
from .stream_records import ResponseEvent


async def create(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    state = request.app[STATE]
    state.require_ready()

    def understood(body: ResponseBody) -> tuple[ResponseBody, Work, ResponseBuilder]:
        return body, *_work(state, body)

    body, work, builder = await understand(request, ResponseBody, understood)
    async with work:
        if body.stream:
            return await _streamed(request, work, builder)
        async for _, chunk in work.chunks():
            builder.take(chunk)
        builder.finish(work.usage())
        return json_response(builder.response, work.request_id)


async def _streamed(request: web.Request, work: Work, builder: ResponseBuilder) -> web.StreamResponse:
    begun = False

    def events(_: int, chunk: TextChunk) -> list[bytes]:
        nonlocal begun
        first = [] if begun else builder.begin()
        begun = True
        return _encoded([*first, *builder.take(chunk)])

    def last() -> list[bytes]:
        return _encoded(builder.finish(work.usage()))

    def failed(answer: Answer) -> list[bytes]:
        return _encoded(builder.fail(answer, work.usage()))

    return await stream_events(request, work, events, last, framing=NAMED_EVENTS, failed=failed)


def _encoded(events: list[ResponseEvent]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]


def _work(state: ServerState, body: ResponseBody) -> tuple[Work, ResponseBuilder]:
    """The checked work of a body, and what builds its answer. Raises InvalidRequest, naming fields of the body."""
    state.check_model(body.model)
    request_id = f"resp_{uuid.uuid4().hex}" if body.request_id is None else body.request_id
    native, tools, names = body.understood((), body.items())
    native = msgspec.structs.replace(native, request_id=request_id)
    try:
        submit = to_submit(native, vocab_size=state.front.info.model.vocab_size)
    except InvalidRequest as error:
        raise error.renamed(names) from None
    label = f"responses user={body.user!r}" if body.user else "responses"
    renamed: Callable[[InvalidRequest, int], InvalidRequest] = lambda error, _: error.renamed(names)  # noqa: E731
    builder = ResponseBuilder(
        _opening(state, body, submit, tools),
        Extensions(constrained=body.constrained, explains_cache=bool(body.explain_cache)),
        logprobs=body.wants_logprobs,
        seal=body.wants_sealed,
        namespaces=tools.namespaces,
    )
    return Work(state, request_id, [submit], label, renamed), builder


def _opening(state: ServerState, body: ResponseBody, submit: Submit, tools: ToolSet) -> ResponseObject:
    """The response before anything has come of it."""
    said: dict[str, Any] = {"effort": None, "summary": None, **(body.reasoning or {})}
    echoed = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key")
    return ResponseObject(
        id=submit.request_id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        model=state.model_name,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=said,
        safety_identifier=body.safety_identifier,
        store=body.is_stored,
        temperature=submit.sampling.temperature,
        text=body.text_echo(),
        tool_choice=body.tool_choice or "auto",
        tools=tools.offered,
        top_logprobs=body.top_logprobs or 0,
        top_p=submit.sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        **{name: getattr(body, name) for name in echoed},
    )


ENDPOINTS = (
    Endpoint("POST", "/v1/responses", create, "Go on with a conversation", ResponseBody, ResponseObject, ResponseEvent),
)
