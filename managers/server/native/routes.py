"""The native endpoints: /generate and /score, which say everything that Sapwood knows about a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from aiohttp import web

from ...front.generation import Completion, Score, ToolCall
from ...front.requests.params import score_to_submit, to_submit
from ...front.requests.request_fields import GenerateRequest, ScoreRequest
from ...front.requests.tolerated import TOLERATED, Tolerated
from ...wire.answers import Alternative, Finish, TextChunk, TokenLogprob, ToolCallPiece
from ...wire.requests import Submit
from ..endpoints import Endpoint
from ..events import stream_events
from ..extension import CacheAnswer, Relaxed, cache_answer, prompt_token_ids, relaxed_of
from ..reading import read_body, understand
from ..responses import json_response
from ..server_state import STATE
from ..usage import EffortCounts, Usage, effort_counts
from ..work import Work
from .sglang_generate import asks_as_sglang, generate_as_sglang


class GenerateBody(GenerateRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /generate: see `managers.front.requests.request_fields.GenerateRequest` for the other fields."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = TOLERATED

    model: str | None = None
    stream: bool = False


class ScoreBody(ScoreRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /score: see `managers.front.requests.request_fields.ScoreRequest` for the other fields."""

    model: str | None = None


class TopToken(msgspec.Struct, frozen=True):
    token_id: int
    text: str
    bytes: list[int]
    logprob: float


class Token(msgspec.Struct, frozen=True):
    """A token with its natural log-probability (null for a prompt's first) and the likeliest at its position."""

    token_id: int
    text: str
    bytes: list[int]
    logprob: float | None
    top: list[TopToken]


class Call(msgspec.Struct, frozen=True):
    """A tool call, whole or (in a stream) what is new of it: then id and name come with its first piece only.

    custom: true for a custom tool, whose `arguments` are its input, and else absent.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str
    custom: bool | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True):
    """One sample, whole or (in a stream) what is new of it. matched_stop: the stop string or token id that ended it.

    effort: what the sample took, once it has ended. relaxed: what the constraint
    names but does not enforce, said with the first of the sample of index 0. reasoning: what the model thought before
    `text`, absent where it thought nothing; reasoning_tokens: how many of the tokens so far that took.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    matched_stop: int | str | None
    logprobs: list[Token] | None
    prompt_logprobs: list[Token] | None
    tool_calls: list[Call]
    effort: EffortCounts | None
    relaxed: list[Relaxed]
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET


class GenerateAnswer(msgspec.Struct, frozen=True):
    """The answer of /generate, or one event of its stream; `usage` counts what has happened so far. cache: where
    `explain_cache` asks for it; in a stream, with the first event of the first sample."""

    request_id: str
    model: str
    choices: list[Choice]
    usage: Usage
    cache: CacheAnswer | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ContinuationScore(msgspec.Struct, frozen=True):
    """logprob: the sum over `tokens`."""

    index: int
    logprob: float
    tokens: list[Token]


class ScoreAnswer(msgspec.Struct, frozen=True):
    request_id: str
    model: str
    scores: list[ContinuationScore]
    usage: Usage


async def generate(request: web.Request) -> web.StreamResponse:
    """POST /generate."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: GenerateBody) -> tuple[GenerateBody, Submit]:
        state.check_model(body.model)
        info = front.info
        submit = to_submit(
            body,
            vocab_size=info.model.vocab_size,
            defaults=info.sampling,
            id_prefix="gen-",
            reasoning=info.reasoning,
        )
        return body, submit

    data = await read_body(request)
    if asks_as_sglang(data):
        return await generate_as_sglang(request, data)
    body, submit = await understand(request, GenerateBody, understood, data)
    async with Work(state, submit.request_id, [submit], "generate") as work:

        def answer(choices: list[Choice], told: TextChunk | Completion) -> GenerateAnswer:
            model = state.check_model(body.model)
            cache = cache_answer(told) if body.explain_cache else msgspec.UNSET
            ids = prompt_token_ids(told) if body.return_token_ids else msgspec.UNSET
            return GenerateAnswer(submit.request_id, model, choices, work.usage(), cache, ids)

        def events(_prompt: int, chunk: TextChunk) -> list[bytes]:
            return [msgspec.json.encode(answer([_chunk_choice(chunk)], chunk))]

        if body.stream:
            return await stream_events(request, work, events)
        completions = (await work.completions())[0]
        return json_response(answer([_choice(each) for each in completions], completions[0]), submit.request_id)


async def score(request: web.Request) -> web.Response:
    """POST /score."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: ScoreBody) -> tuple[str, Submit]:
        return state.check_model(body.model), score_to_submit(
            body, vocab_size=front.info.model.vocab_size, id_prefix="score-"
        )

    model, submit = await understand(request, ScoreBody, understood)
    async with Work(state, submit.request_id, [submit], "score") as work:
        scores = [Score.of(each) for each in (await work.completions())[0]]
        shown = [ContinuationScore(each.index, each.logprob, _tokens(each.tokens) or []) for each in scores]
        return json_response(ScoreAnswer(submit.request_id, model, shown, work.usage()), submit.request_id)


def _choice(completion: Completion) -> Choice:
    return Choice(
        completion.index,
        completion.text,
        completion.token_ids,
        completion.finish.reason,
        completion.finish.matched,
        _tokens(completion.logprobs),
        _tokens(completion.prompt_logprobs),
        [_call(i, each) for i, each in enumerate(completion.tool_calls)],
        None if completion.effort is None else effort_counts(completion.effort),
        relaxed_of(completion.relaxed),
        completion.reasoning or msgspec.UNSET,
        completion.reasoning_tokens or msgspec.UNSET,
    )


def _chunk_choice(chunk: TextChunk) -> Choice:
    finish = chunk.finish or Finish("")
    return Choice(
        chunk.index,
        chunk.text,
        chunk.token_ids,
        finish.reason or None,
        finish.matched,
        _tokens(chunk.logprobs or None),
        _tokens(chunk.prompt_logprobs),
        [_call(each.index, each) for each in chunk.tool_calls],
        None if chunk.effort is None else effort_counts(chunk.effort),
        relaxed_of(chunk.relaxed),
        chunk.reasoning or msgspec.UNSET,
        chunk.reasoning_tokens or msgspec.UNSET,
    )


def _call(index: int, call: ToolCall | ToolCallPiece) -> Call:
    return Call(index, call.id or None, call.name or None, call.arguments, call.custom or msgspec.UNSET)


def _tokens(tokens: list[TokenLogprob] | None) -> list[Token] | None:
    if tokens is None:
        return None
    return [Token(each.token_id, each.text, list(each.data), each.logprob, _top(each.top)) for each in tokens]


def _top(top: list[Alternative]) -> list[TopToken]:
    return [TopToken(each.token_id, each.text, list(each.data), each.logprob) for each in top]


ENDPOINTS = (
    Endpoint(
        "POST",
        "/generate",
        generate,
        "Complete a prompt or a conversation",
        GenerateBody,
        GenerateAnswer,
        GenerateAnswer,
    ),
    Endpoint("POST", "/score", score, "How likely each of several continuations is", ScoreBody, ScoreAnswer),
)
