"""The endpoints of Anthropic's API. A request is checked whole before any of it is submitted."""

from __future__ import annotations

import uuid

import msgspec
from aiohttp import web

from ...front.requests.params import to_submit
from ...front.requests.reasoning_fields import without_effect
from ...wire.answers import TextChunk
from ...wire.errors import InvalidRequest
from ...wire.requests import Submit
from ..endpoints import Endpoint
from ..events import NAMED_EVENTS, stream_events
from ..extension import Extensions
from ..reading import IGNORED, understand
from ..responses import json_response, note_headers
from ..server_state import STATE, ServerState
from ..work import Work
from .message_answers import MessageAnswer, MessageUsage, TokenCount, message_error, whole_message
from .message_bodies import CountBody, MessageBody, MessageNames
from .message_stream import MessageEvent, MessageStream


async def messages(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages."""
    state = request.app[STATE]
    state.require_ready()

    def understood(body: MessageBody) -> tuple[MessageBody, Submit, MessageNames]:
        submit, names = _submit(state, body)
        said = body.thinking_fields()
        unused = without_effect({name: value for name, (value, _) in said.items()}, state.front.info.reasoning)
        request[IGNORED] = (*request[IGNORED], *(said[name][1] for name in unused))
        return body, submit, names

    body, submit, names = await understand(request, MessageBody, understood)
    label = f"messages user={body.asked_by!r}" if body.asked_by else "messages"
    usage = MessageUsage(input_tokens=0, cache_read_input_tokens=0, output_tokens=0)
    opening = MessageAnswer(id=submit.request_id, model=state.check_model(body.model), usage=usage)
    extensions = Extensions(constrained=body.constrained, explains_cache=bool(body.explain_cache))
    hides, tells_ids = body.hides_thinking, bool(body.return_token_ids)
    note_headers({"Request-Id": submit.request_id})  # which Anthropic's clients read
    async with Work(state, submit.request_id, [submit], label, lambda error, _: error.renamed(names)) as work:
        if not body.stream:
            completion = (await work.completions())[0][0]
            answer = whole_message(
                completion, opening, work.usage(), extensions, hides_thinking=hides, tells_ids=tells_ids
            )
            return json_response(answer, work.request_id)
        stream = MessageStream(opening, extensions, hides_thinking=hides, tells_ids=tells_ids)

        def events(_: int, chunk: TextChunk) -> list[bytes]:
            return stream.take(chunk, work.usage())

        return await stream_events(
            request, work, events, lambda: stream.last(work.usage()), framing=NAMED_EVENTS, failed=stream.fail
        )


async def count_tokens(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: CountBody) -> tuple[Submit, MessageNames]:
        return _submit(state, body)

    submit, names = await understand(request, CountBody, understood)
    try:
        tokenized = await front.tokenize(submit)
    except InvalidRequest as error:
        raise error.renamed(names) from None
    return json_response(TokenCount(len(tokenized.token_ids)), submit.request_id)


def _submit(state: ServerState, body: CountBody) -> tuple[Submit, MessageNames]:
    """The checked request. Raises InvalidRequest, naming fields of the body."""
    state.check_model(body.model)
    native, names = body.request()
    if native.request_id is None:
        native = msgspec.structs.replace(native, request_id=f"msg_{uuid.uuid4().hex}")
    try:
        return to_submit(
            native, vocab_size=state.front.info.model.vocab_size, defaults=state.front.info.sampling
        ), names
    except InvalidRequest as error:
        raise error.renamed(names) from None


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/messages",
        messages,
        "Go on with a conversation, as Anthropic has it",
        MessageBody,
        MessageAnswer,
        MessageEvent,
        message_error,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "How many tokens such a conversation has",
        CountBody,
        TokenCount,
        error=message_error,
    ),
)
