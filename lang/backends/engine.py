"""The in-process backend: an `Engine`, as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from ...managers.front.engine import Engine
from ...managers.front.generation import Completion, collect
from ...managers.front.requests.render import Rendering
from ...managers.wire.answers import TextChunk, TokenLogprob
from ..words.choices import ScoredToken
from .base import Emit, TokenCounts
from .chat_pieces import Shapes
from .native import AnswerToken, NativeBackend, NativeSample, Runs


class EngineBackend(NativeBackend):
    """Runs programs on an engine, which stays its owner's to shut down."""

    def __init__(self, engine: Engine, shapes: Shapes) -> None:
        super().__init__(shapes)
        self.engine = engine
        self.name = repr(engine)

    def flush_cache(self) -> int:
        return self.engine.flush_cache()

    async def _send(self, fields: dict[str, Any], emit: Emit | None) -> tuple[list[NativeSample], TokenCounts]:
        prompt, others = fields["prompt"], {name: value for name, value in fields.items() if name != "prompt"}
        if emit is None:
            (generation,) = await self.engine.agenerate([prompt], **others)
            completions = generation.completions
        else:
            completions = await self._streamed(prompt, others, emit)
        first = completions[0]
        made = sum(each.completion_tokens for each in completions)
        return [_native(each) for each in completions], TokenCounts(first.prompt_tokens, first.cached_tokens, made)

    async def _streamed(self, prompt: Any, fields: dict[str, Any], emit: Emit) -> list[Completion]:
        async def passed_on(stream: AsyncIterator[TextChunk]) -> AsyncIterator[TextChunk]:
            async for chunk in stream:
                if chunk.index == 0 and chunk.text:
                    emit(chunk.text)
                yield chunk

        async with self.engine.astream(prompt, **fields) as stream:
            return await collect(passed_on(stream))

    async def _score(
        self, prompt: Runs, continuations: Sequence[str | list[int]]
    ) -> tuple[list[tuple[ScoredToken, ...]], TokenCounts]:
        scores = await self.engine.ascore(prompt, continuations)
        tokens = [tuple(ScoredToken(t.token_id, t.text, t.logprob or 0.0) for t in each.tokens) for each in scores]
        return tokens, TokenCounts(sum(s.prompt_tokens for s in scores), sum(s.cached_tokens for s in scores))

    async def _render(self, messages: list[dict[str, Any]], opens: bool) -> Rendering:
        return await self.engine.arender(messages, add_generation_prompt=opens)


def _native(completion: Completion) -> NativeSample:
    logprobs = None if completion.logprobs is None else [_token(each) for each in completion.logprobs]
    finish = completion.finish
    return NativeSample(completion.text, completion.token_ids, finish.reason, finish.matched, logprobs)


def _token(token: TokenLogprob) -> AnswerToken:
    top = [(each.token_id, each.text, each.logprob) for each in token.top]
    return AnswerToken(token.token_id, token.text, token.data, token.logprob, top)
