"""The endpoints of /v1/responses. A request is checked whole before any of it is submitted."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from ...front.requests.params import to_submit
from ...front.requests.reasoning_fields import without_effect
from ...wire.answers import TextChunk
from ...wire.errors import InvalidRequest
from ...wire.requests import Chat, Submit
from ..access import salted
from ..endpoints import Endpoint
from ..errors import Answer
from ..events import NAMED_EVENTS, EventStream, stream_events
from ..extension import Extensions
from ..reading import IGNORED, understand
from ..responses import json_response
from ..server_state import STATE, ServerState
from ..work import Work
from .response_bodies import Names, ResponseBody
from .response_building import ResponseBuilder
from .response_lists import PageQuery, input_page, read_number
from .response_objects import InputTokens, ItemList, ResponseDeleted, ResponseObject
from .response_runs import ResponseRun, tokens_of, with_ids
from .response_store import ResponseStore, StoredResponse, StoredTurn, StoreLimits
from .response_tools import ToolSet
from .stream_records import ResponseEvent

_STORE: web.AppKey[ResponseStore] = web.AppKey("responses", ResponseStore)


def add_store(app: web.Application, limits: StoreLimits) -> None:
    """What the handlers of one application keep."""
    store = app[_STORE] = ResponseStore(limits)

    async def close(_: web.Application) -> None:
        await store.close()

    app.on_shutdown.append(close)


def _owner(request: web.Request) -> str:
    """Whose responses a request may know of, but for its salt: those of its key or, where the server has no keys, of
    whatever it sends as one."""
    sent = [request.headers.get(name, "") for name in ("Authorization", "X-Api-Key")]
    return salted("") or hashlib.sha256(repr(sent).encode("utf-8", "replace")).hexdigest()


def _tenant(owner: str, salt: str) -> str:
    return f"{owner}:{salt}"


async def create(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    state, store = request.app[STATE], request.app[_STORE]
    state.require_ready()
    owner = _owner(request)

    def understood(body: ResponseBody) -> tuple[ResponseBody, str, ResponseRun]:
        tenant = _tenant(owner, body.cache_salt or "")
        unused = without_effect(body.thinking(), state.front.info.reasoning)
        request[IGNORED] = (
            *request[IGNORED],
            *("reasoning.effort" if each == "reasoning_effort" else each for each in unused),
        )
        return body, tenant, _run(state, body, _asked(state, store, tenant, body))

    body, tenant, run = await understand(request, ResponseBody, understood)
    if body.background:
        await run.work.__aenter__()  # whose end is with the background's own
        stored = run.start(store, tenant)
        if body.stream:
            return await _replayed(request, stored, -1)
        return json_response(stored.response, run.work.request_id)
    async with run.work as work:
        try:
            if body.stream:
                return await _streamed(request, run, lambda: _keep(run, body, store, tenant))
            async for _, chunk in work.chunks():
                run.take(chunk)
            run.finish()
        finally:
            _keep(run, body, store, tenant)
        return json_response(run.response, work.request_id)


async def count_input(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses/input_tokens: how many tokens the prompt of such a request has."""
    state, store = request.app[STATE], request.app[_STORE]
    front, owner = state.require_ready(), _owner(request)

    def understood(body: ResponseBody) -> AskedResponse:
        return _asked(state, store, _tenant(owner, body.cache_salt or ""), body)

    asked = await understand(request, ResponseBody, understood)
    try:
        tokenized = await front.tokenize(asked.submit)
    except InvalidRequest as error:
        raise error.renamed(asked.names) from None
    return json_response(InputTokens(len(tokenized.token_ids)))


def _keep(run: ResponseRun, body: ResponseBody, store: ResponseStore, tenant: str) -> None:
    if body.is_stored:
        run.keep(store, tenant)


async def _streamed(request: web.Request, run: ResponseRun, keep: Callable[[], None]) -> web.StreamResponse:
    def events(_: int, chunk: TextChunk) -> list[bytes]:
        return run.take(chunk)

    def last() -> list[bytes]:
        payloads = run.finish()
        keep()  # before its client, who may go on from it at once, knows that it has ended
        return payloads

    def failed(answer: Answer) -> list[bytes]:
        payloads = run.fail(answer)
        keep()
        return payloads

    return await stream_events(request, run.work, events, last, framing=NAMED_EVENTS, failed=failed)


async def _replayed(request: web.Request, stored: StoredResponse, number: int) -> web.StreamResponse:
    """The events behind this sequence number of a response in the background, as they come."""
    events = EventStream(request, stored.response.id, NAMED_EVENTS)
    assert stored.log is not None
    while payloads := await stored.log.after(number):
        await events.send(*payloads)
        number += len(payloads)
    return await events.done()


def _found(request: web.Request) -> tuple[ResponseStore, str, StoredResponse]:
    request.app[STATE].require_ready()
    store, tenant = request.app[_STORE], _tenant(_owner(request), request.query.get("cache_salt", ""))
    return store, tenant, store.get(tenant, request.match_info["id"])


async def retrieve(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}: as it is now or, with `stream=true`, its events after `starting_after`."""
    _, _, stored = _found(request)
    if request.query.get("stream", "false").lower() not in ("true", "1"):
        return json_response(stored.response)
    if stored.log is None:
        text = "is only for responses that were created with background; get this one without it."
        raise InvalidRequest.about(("stream",), text)
    return await _replayed(request, stored, read_number(request.query, "starting_after", -1, 0, 2**31))


async def delete(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/responses/{id}."""
    store, tenant, stored = _found(request)
    store.delete(tenant, stored.response.id)
    return json_response(ResponseDeleted(id=stored.response.id))


async def cancel(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses/{id}/cancel: end one in the background; one that has ended stays as it is."""
    store, tenant, stored = _found(request)
    if not stored.response.background:
        raise InvalidRequest("Only a response that was created with background can be cancelled.")
    if stored.task is not None:
        stored.task.cancel()
        assert stored.log is not None
        await stored.log.ended()
    return json_response(store.get(tenant, stored.response.id).response)


async def input_items(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}/input_items: what it was made from, page by page."""
    _, _, stored = _found(request)
    items = stored.turn.read_items() if stored.turn is not None else []
    return json_response(input_page(items, PageQuery.of(request.query)))


class AskedResponse(NamedTuple):
    """A checked body. items: its input. before: what it goes on from."""

    submit: Submit
    names: Names
    tools: ToolSet
    items: list[dict[str, Any]]
    before: StoredTurn | None


def _asked(state: ServerState, store: ResponseStore, tenant: str, body: ResponseBody) -> AskedResponse:
    """Raises InvalidRequest, naming fields of the body."""
    state.check_model(body.model)
    request_id = f"resp_{uuid.uuid4().hex}" if body.request_id is None else body.request_id
    if body.is_stored and store.has(tenant, request_id):
        raise InvalidRequest(f"There is a response with the id {request_id!r}.", "request_id")
    before = None
    if body.previous_response_id is not None:
        before = store.get(tenant, body.previous_response_id, "previous_response_id").ended_turn()
    referred: list[StoredTurn] = []

    def found(item_id: str, field: str) -> dict[str, Any]:
        item, turn = store.item(tenant, item_id, field)
        referred.append(turn)
        return item

    items = with_ids(body.items(found))
    native, tools, names = body.understood(before.conversation() if before is not None else (), items)
    info = state.front.info
    if not info.reasoning.thinks:  # agents say how hard to think without knowing whether the model does
        native = msgspec.structs.replace(native, reasoning_effort=None)
    native = msgspec.structs.replace(native, request_id=request_id)
    try:
        submit = to_submit(native, vocab_size=info.model.vocab_size, defaults=info.sampling, reasoning=info.reasoning)
    except InvalidRequest as error:
        raise error.renamed(names) from None
    assert submit.chat is not None
    known = before.tokens() if before is not None else tokens_of(referred[-1:], native.messages or [])
    chat: Chat = msgspec.structs.replace(submit.chat, known=known)
    submit = msgspec.structs.replace(submit, chat=chat, tells_prompt=submit.tells_prompt or body.is_stored)
    return AskedResponse(submit, names, tools, items, before)


def _run(state: ServerState, body: ResponseBody, asked: AskedResponse) -> ResponseRun:
    """The work of a body, and what builds its answer."""

    def renamed(error: InvalidRequest, _: int) -> InvalidRequest:
        return error.renamed(asked.names)

    builder = ResponseBuilder(
        _opening(state, body, asked.submit, asked.tools),
        Extensions(constrained=body.constrained, explains_cache=bool(body.explain_cache)),
        logprobs=body.wants_logprobs,
        seal=body.wants_sealed,
        tells_ids=bool(body.return_token_ids),
        namespaces=asked.tools.namespaces,
    )
    label = f"responses user={body.user!r}" if body.user else "responses"
    work = Work(state, asked.submit.request_id, [asked.submit], label, renamed)
    return ResponseRun(work, builder, asked.items, asked.before, lambda: state.phase == "stopping")


def _opening(state: ServerState, body: ResponseBody, submit: Submit, tools: ToolSet) -> ResponseObject:
    """The response before anything has come of it."""
    said: dict[str, Any] = {"effort": None, "summary": None, **(body.reasoning or {})}
    echoed = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key")
    return ResponseObject(
        id=submit.request_id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        model=state.check_model(body.model),
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
    Endpoint("POST", "/v1/responses", create, "Answer a conversation", ResponseBody, ResponseObject, ResponseEvent),
    Endpoint(
        "POST",
        "/v1/responses/input_tokens",
        count_input,
        "How many tokens such a request's prompt has",
        ResponseBody,
        InputTokens,
    ),
    Endpoint("GET", "/v1/responses/{id}", retrieve, "A stored response", answer=ResponseObject, event=ResponseEvent),
    Endpoint("DELETE", "/v1/responses/{id}", delete, "Forget a stored response", answer=ResponseDeleted),
    Endpoint("POST", "/v1/responses/{id}/cancel", cancel, "End a response in the background", answer=ResponseObject),
    Endpoint(
        "GET", "/v1/responses/{id}/input_items", input_items, "What a stored response was made from", answer=ItemList
    ),
)
