"""What `Engine` and a Sapwood server have in common as backends: prompts are token-exact, choices one round trip."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...managers.front.requests.render import Rendering
from ...managers.wire.errors import Overloaded
from ..history import History
from ..ir import Gen, GenOptions, Role, Select
from ..words.choices import Scored, ScoredToken
from .base import Backend, Completed, Emit, Judged, Sample, TokenCounts
from .chat_pieces import ChatPieces, Shapes

PATIENCE_SECONDS = 60.0  # how long an overloaded server is asked again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

T = TypeVar("T")
Runs = list[str | list[int]]


@dataclass(frozen=True)
class AnswerToken:
    """A token with its bytes, its log-probability, and the likeliest others as (id, text, log-probability)."""

    token_id: int
    text: str
    data: bytes
    logprob: float | None
    top: list[tuple[int, str, float]]


@dataclass(frozen=True)
class NativeSample:
    """A completion as the native API gives it. matched: the stop string or token id that ended it."""

    text: str
    token_ids: list[int]
    finish_reason: str
    matched: int | str | None
    logprobs: list[AnswerToken] | None


class NativeBackend(Backend):
    """Everything but the transport, which is `_send`, `_score` and `_render`."""

    def __init__(self, shapes: Shapes) -> None:
        self._pieces = ChatPieces(self._render, shapes)

    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        pass  # everything that can be said is supported

    def check_select(self, select: Select, role: Role | None) -> None:
        pass

    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        prompt = await self._prompt(history)
        fields: dict[str, Any] = {"prompt": prompt, **options.given()}
        if options.stop and options.logprobs is None:
            fields["logprobs"] = 0  # to know which tokens a stop string leaves whole
        samples, usage = await patiently(lambda: self._send(fields, emit))
        wanted = options.logprobs is not None
        return Completed([_sample(each, wanted) for each in samples], usage)

    async def judge(self, history: History, choices: Sequence[str], *, unconditional: bool) -> Judged:
        prompt = await self._prompt(history)
        tokens, usage = await patiently(lambda: self._score(prompt, list(choices)))
        if not unconditional:
            return Judged([Scored(each) for each in tokens], usage)
        ids = [[token.token_id for token in each if token.token_id is not None] for each in tokens]
        free, more = await patiently(lambda: self._score([], ids))
        scored = [Scored(each, tuple(token.logprob for token in other)) for each, other in zip(tokens, free)]
        cached = usage.cached_tokens + more.cached_tokens
        return Judged(scored, TokenCounts(usage.prompt_tokens + more.prompt_tokens, cached))

    async def text(self, history: History) -> str:
        return "".join(each.text for each in await self._pieces.prompt(history))

    async def _prompt(self, history: History) -> Runs:
        return [run for segment in await self._pieces.prompt(history) for run in segment.runs if run]

    @abstractmethod
    async def _send(self, fields: dict[str, Any], emit: Emit | None) -> tuple[list[NativeSample], TokenCounts]:
        """One request of `managers.front.requests.request_fields.GenerateRequest`'s fields."""

    @abstractmethod
    async def _score(
        self, prompt: Runs, continuations: Sequence[str | list[int]]
    ) -> tuple[list[tuple[ScoredToken, ...]], TokenCounts]:
        """Each continuation's tokens with their log-probabilities."""

    @abstractmethod
    async def _render(self, messages: list[dict[str, Any]], opens: bool) -> Rendering:
        """What the chat template makes of messages; opens: with the assistant's turn opened at the end."""


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The call's result; while the server is overloaded it is asked again, for `PATIENCE_SECONDS` at most."""
    pause, deadline = _FIRST_PAUSE, time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await call()
        except Overloaded:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _sample(sample: NativeSample, with_logprobs: bool) -> Sample:
    shown = [_shown(token) for token in sample.logprobs or []] if with_logprobs else None
    return Sample(sample.text, kept_runs(sample), sample.finish_reason, shown)


def _shown(token: AnswerToken) -> dict[str, Any]:
    top = [{"token_id": i, "text": text, "logprob": logprob} for i, text, logprob in token.top]
    return {"token_id": token.token_id, "text": token.text, "logprob": token.logprob, "top": top}


def kept_runs(sample: NativeSample) -> tuple[str | list[int], ...]:
    """What a completion adds to the prompt: its token ids, as they were generated.

    A token that ended it has no text and is left out; the chat template puts the end of a turn there itself. Where a
    stop string cut the text within a token, the tokens before stay, and the rest of the text is added as text.
    """
    ids = sample.token_ids
    if isinstance(sample.matched, int) and ids and ids[-1] == sample.matched:
        ids = ids[:-1]
    if not isinstance(sample.matched, str):
        return (ids,) if ids else ()
    text = sample.text.encode("utf-8", "surrogatepass")
    kept, whole, length = b"", 0, 0
    for i, token in enumerate(sample.logprobs or []):
        kept += token.data
        if not text.startswith(kept):
            break
        if _is_whole(kept):
            whole, length = i + 1, len(kept)
    rest = text[length:].decode("utf-8", "replace")
    return tuple(run for run in (ids[:whole], rest) if run)


def _is_whole(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
