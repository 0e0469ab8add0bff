"""Ollama's /api/chat and /api/generate. A request is checked whole before any of it is submitted."""

from __future__ import annotations

from aiohttp import web

from ...front.requests.params import to_submit
from ...front.requests.reasoning_fields import without_effect
from ...wire.answers import TextChunk
from ...wire.errors import InvalidRequest
from ...wire.requests import Submit
from ..endpoints import Endpoint
from ..errors import Answer
from ..events import JSON_LINES, stream_events
from ..reading import IGNORED, understand
from ..responses import json_response
from ..server_state import STATE
from ..work import Work
from .ollama_answers import OllamaAnswers, OllamaChatAnswer, OllamaGenerateAnswer, ollama_error
from .ollama_bodies import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaNames


async def chat(request: web.Request) -> web.StreamResponse:
    """POST /api/chat."""
    return await _answer(request, OllamaChatBody)


async def generate(request: web.Request) -> web.StreamResponse:
    """POST /api/generate."""
    return await _answer(request, OllamaGenerateBody)


async def _answer(request: web.Request, struct: type[OllamaChatBody] | type[OllamaGenerateBody]) -> web.StreamResponse:
    state = request.app[STATE]
    front = state.require_ready()
    info = front.info
    ignored: list[str] = []

    def understood(body: OllamaBody) -> tuple[OllamaBody, Submit | None, OllamaNames]:
        assert isinstance(body, OllamaChatBody | OllamaGenerateBody)
        state.check_model(body.model)
        if body.loads_only:
            return body, None, OllamaNames({})
        native, names, no_effect = body.request(info.max_context)
        ignored.extend(no_effect)
        if without_effect(body.thinking_fields(), info.reasoning):
            ignored.append("think")
        try:
            submit = to_submit(
                native,
                vocab_size=info.model.vocab_size,
                defaults=info.sampling,
                reasoning=info.reasoning,
                id_prefix="ollama-",
            )
            return body, submit, names
        except InvalidRequest as error:
            raise error.renamed(names) from None

    body, submit, names = await understand(request, struct, understood)
    request[IGNORED] = (*request[IGNORED], *ignored)
    answers = OllamaAnswers(body.model or state.model_name, chat=struct is OllamaChatBody, logprobs=bool(body.logprobs))
    if submit is None:
        return json_response(answers.loaded("unload" if body.keep_alive in (0, "0") else "load"))
    async with Work(state, submit.request_id, [submit], "ollama", lambda error, _: error.renamed(names)) as work:
        if body.stream is False:
            async for _, chunk in work.chunks():
                answers.take(chunk)
            return json_response(answers.whole(work.usage()), work.request_id)

        def lines(_: int, chunk: TextChunk) -> list[bytes]:
            return answers.take(chunk)

        def failed(answer: Answer) -> list[bytes]:
            return [answer.body(ollama_error)]

        return await stream_events(
            request, work, lines, lambda: answers.last(work.usage()), framing=JSON_LINES, failed=failed
        )


ENDPOINTS = (
    Endpoint(
        "POST",
        "/api/chat",
        chat,
        "Go on with a conversation, as Ollama has it",
        OllamaChatBody,
        OllamaChatAnswer,
        OllamaChatAnswer,
        ollama_error,
        stream_media=JSON_LINES.content_type,
    ),
    Endpoint(
        "POST",
        "/api/generate",
        generate,
        "Complete a prompt, as Ollama has it",
        OllamaGenerateBody,
        OllamaGenerateAnswer,
        OllamaGenerateAnswer,
        ollama_error,
        stream_media=JSON_LINES.content_type,
    ),
)
