"""The OpenAI endpoints. A request is checked whole before any of it is submitted: one bad item refuses it, by name."""

from __future__ import annotations

import uuid

import msgspec
from aiohttp import web

from ...front.requests.params import to_submit
from ...front.requests.reasoning_fields import without_effect
from ...wire.errors import InvalidRequest, Path
from ..endpoints import Endpoint
from ..events import stream_events
from ..reading import IGNORED, understand
from ..responses import json_response
from ..server_state import STATE, ServerState
from ..work import Work
from .bodies import ChatBody, CompletionBody, SharedFields
from .chat import ChatAnswer, ChatAnswers, ChatChunk
from .completions import TextAnswer, TextAnswers
from .thinking_bodies import thinking_fields, thinking_names


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    state = request.app[STATE]
    state.require_ready()

    def understood(body: CompletionBody) -> tuple[CompletionBody, Work]:
        return body, _work(state, body, "completions", "cmpl")

    body, work = await understand(request, CompletionBody, understood)
    return await _answer(request, body, work, TextAnswers(body, state.check_model(body.model), work.request_id))


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    state = request.app[STATE]
    state.require_ready()

    def understood(body: ChatBody) -> tuple[ChatBody, Work]:
        work = _work(state, body, "chat", "chatcmpl")
        names = thinking_names(body)
        unused = without_effect(thinking_fields(body), state.front.info.reasoning)
        request[IGNORED] = (*request[IGNORED], *(names[each] for each in unused))
        return body, work

    body, work = await understand(request, ChatBody, understood)
    return await _answer(request, body, work, ChatAnswers(body, state.check_model(body.model), work.request_id))


def _work(state: ServerState, body: SharedFields, endpoint: str, id_prefix: str) -> Work:
    """The checked work of a body. Raises InvalidRequest, with fields by the names that the caller knows them under."""
    state.check_model(body.model)
    request_id = f"{id_prefix}-{uuid.uuid4().hex}" if body.request_id is None else body.request_id
    requests, names = body.requests(), body.names()
    info = state.front.info
    many = len(requests) > 1
    sequences, capacity = len(requests) * (body.n or 1), state.front.config.capacity
    if many and sequences > capacity:
        raise InvalidRequest(f"prompt asks for {sequences} sequences; {capacity} can be open at once.", "prompt")

    def renamed(error: InvalidRequest, item: int) -> InvalidRequest:
        def name(path: Path) -> Path:
            root = ("prompt", item) if many and path[0] == "prompt" else (names.get(str(path[0]), path[0]),)
            return (*root, *path[1:])

        told = error.renamed(name)
        if many and error.path is not None and error.path[0] == "prompt" and told.path not in told.sentence:
            return type(told)([("prompt", item), ": ", *told.sentence], told.path)
        return told

    submits = []
    for i, request in enumerate(requests):
        request = msgspec.structs.replace(request, request_id=f"{request_id}-{i}" if many else request_id)
        try:
            submits.append(
                to_submit(request, vocab_size=info.model.vocab_size, defaults=info.sampling, reasoning=info.reasoning)
            )
        except InvalidRequest as error:
            raise renamed(error, i) from None
    label = f"{endpoint} user={body.user!r}" if body.user else endpoint
    return Work(state, request_id, submits, label, renamed)


async def _answer(
    request: web.Request, body: SharedFields, work: Work, answers: TextAnswers | ChatAnswers
) -> web.StreamResponse:
    """Run the work and answer, streamed or whole."""
    wants_usage = body.include_usage
    async with work:
        if not body.stream:
            return json_response(answers.whole(await work.completions(), work.usage()), work.request_id)
        last = (lambda: [answers.usage_event(work.usage())]) if wants_usage else None
        return await stream_events(request, work, answers.events, last)


ENDPOINTS = (
    Endpoint(
        "POST", "/v1/chat/completions", chat_completions, "Go on with a conversation", ChatBody, ChatAnswer, ChatChunk
    ),
    Endpoint("POST", "/v1/completions", completions, "Complete texts", CompletionBody, TextAnswer, TextAnswer),
)
