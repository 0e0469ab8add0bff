"""What a finished request gives its caller, put together from its chunks; shared by the engine and the server."""

from __future__ import annotations

from collections.abc import AsyncIterable

import msgspec

from ...constrained.spec import Unenforced
from ...runtime.wanted import HiddenStates
from ..wire.answers import Alternative, CacheReport, Effort, Finish, TextChunk, TokenLogprob, ToolCallPiece

__all__ = [
    "Alternative",
    "CacheReport",
    "Completion",
    "Effort",
    "Finish",
    "Generation",
    "HiddenStates",
    "Score",
    "TextChunk",
    "TokenLogprob",
    "ToolCall",
    "ToolCallPiece",
    "Unenforced",
    "collect",
]

_REPR_CHARACTERS = 60


class ToolCall(msgspec.Struct, frozen=True):
    """A call that a completion makes. arguments: JSON text (cut short where the completion is).

    custom: it calls a custom tool, and `arguments` is its input: any text.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False


class Completion(msgspec.Struct, kw_only=True):
    """One sample of a request.

    text: the whole completion (after the prompt's text, where `echo`). token_ids: every token that was generated and
    belongs to the completion. finish: why it ended. logprobs: as long as token_ids, where wanted
    (None where not, or where nothing was generated). prompt_logprobs:
    of the prompt's tokens from `logprob_start` on, where wanted; of the continuation's tokens for a scoring request.
    cached_tokens: how many prompt tokens earlier work had computed.
    tool_calls: where the request may call tools; `text` is then the text before the calls, and token_ids and logprobs
    have the calls' tokens too. effort: what it took. relaxed: what the request's
    constraint names but does not enforce, as `strict=False` allowed (with the first sample). hidden: the hidden states
    of prompt positions, where wanted. reasoning: what the model thought before its answer, where it marks that; it is
    no part of `text`. reasoning_tokens: how many of the completion's tokens are of that, with its marks. cache: where
    the prompt left the cached path and why (with the first sample); with `explain_cache` it quotes both. prompt_ids:
    the prompt's tokens, with `return_token_ids` (and the first sample).
    """

    index: int
    text: str
    token_ids: list[int]
    finish: Finish
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tool_calls: list[ToolCall] = []
    effort: Effort | None = None
    relaxed: list[Unenforced] = []
    hidden: HiddenStates | None = None
    reasoning: str = ""
    cache: CacheReport | None = None
    reasoning_tokens: int = 0
    prompt_ids: list[int] | None = None

    @property
    def finish_reason(self) -> str:
        """ "stop", "length" or "tool_calls"."""
        return self.finish.reason


class Generation(msgspec.Struct, kw_only=True):
    """All `n` completions of one request; the short names are those of the first."""

    request_id: str
    completions: list[Completion]

    def __repr__(self) -> str:
        first = self.completions[0]
        shown = first.text if len(first.text) <= _REPR_CHARACTERS else first.text[:_REPR_CHARACTERS] + "…"
        counts = (
            f"{first.prompt_tokens} prompt tokens, {first.cached_tokens} cached, {first.completion_tokens} generated"
        )
        more = f", {len(self.completions)} completions" if len(self.completions) > 1 else ""
        return f"<Generation {shown!r} ({first.finish_reason}; {counts}{more})>"

    @property
    def text(self) -> str:
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        return self.completions[0].logprobs

    @property
    def prompt_logprobs(self) -> list[TokenLogprob] | None:
        return self.completions[0].prompt_logprobs

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.completions[0].tool_calls

    @property
    def effort(self) -> Effort | None:
        return self.completions[0].effort

    @property
    def relaxed(self) -> list[Unenforced]:
        return self.completions[0].relaxed

    @property
    def reasoning(self) -> str:
        return self.completions[0].reasoning

    @property
    def cache(self) -> CacheReport | None:
        return self.completions[0].cache

    @property
    def prompt_tokens(self) -> int:
        return self.completions[0].prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that earlier work had computed, as the first sample found them."""
        return self.completions[0].cached_tokens


class Score(msgspec.Struct, kw_only=True):
    """The log-probability of one continuation: `logprob` is the sum over `tokens` (natural logarithm)."""

    index: int
    logprob: float
    tokens: list[TokenLogprob]
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, completion: Completion) -> Score:
        """The score that the completion of a scoring request carries."""
        tokens = completion.prompt_logprobs or []
        return cls(
            index=completion.index,
            logprob=sum(token.logprob for token in tokens if token.logprob is not None),
            tokens=tokens,
            prompt_tokens=completion.prompt_tokens,
            cached_tokens=completion.cached_tokens,
        )


async def collect(stream: AsyncIterable[TextChunk]) -> list[Completion]:
    """Read a stream to its end: its samples by index. Raises what the stream raises."""
    chunks: dict[int, list[TextChunk]] = {}
    async for chunk in stream:
        chunks.setdefault(chunk.index, []).append(chunk)
    return [_joined(chunks[index]) for index in sorted(chunks)]


def _joined(chunks: list[TextChunk]) -> Completion:
    last = chunks[-1]
    if last.finish is None:
        raise ValueError(f"the stream of sample {last.index} ended without a finish")
    logprobs = [each for chunk in chunks for each in chunk.logprobs]
    return Completion(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
        finish=last.finish,
        logprobs=logprobs or None,
        prompt_logprobs=next((c.prompt_logprobs for c in chunks if c.prompt_logprobs is not None), None),
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        completion_tokens=last.completion_tokens,
        tool_calls=_tool_calls([piece for chunk in chunks for piece in chunk.tool_calls]),
        effort=last.effort,
        relaxed=[each for chunk in chunks for each in chunk.relaxed],
        hidden=next((chunk.hidden for chunk in chunks if chunk.hidden is not None), None),
        reasoning="".join(chunk.reasoning for chunk in chunks),
        cache=next((chunk.cache for chunk in chunks if chunk.cache is not None), None),
        reasoning_tokens=last.reasoning_tokens,
        prompt_ids=next((chunk.prompt_ids for chunk in chunks if chunk.prompt_ids is not None), None),
    )


def _tool_calls(pieces: list[ToolCallPiece]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.id:
            calls.append(ToolCall(piece.id, piece.name, "", piece.custom))
        calls[-1] = msgspec.structs.replace(calls[-1], arguments=calls[-1].arguments + piece.arguments)
    return calls
