"""The backend for a Sapwood server, by its address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...managers.front.requests.render import Rendering
from ...managers.server.native.routes import Choice, ContinuationScore, GenerateAnswer, ScoreAnswer
from ...managers.server.native.routes import Token as WireToken
from ..errors import BackendError
from ..running.loop import loop_thread
from ..words.choices import ScoredToken
from .base import Emit, TokenCounts
from .chat_pieces import Shapes
from .http import HttpClient
from .native import AnswerToken, NativeBackend, NativeSample, Runs


class RuntimeEndpoint(NativeBackend):
    """Runs programs on the Sapwood server at an address such as "http://127.0.0.1:8000"; `model` is what it serves."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        """base_url: the server's own address; one that ends in /v1, as OpenAI's clients want it, is taken without that.
        timeout: seconds without a byte after which the server counts as gone.

        Raises BackendError where no Sapwood server answers there.
        """
        super().__init__(Shapes())
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
        self._http = HttpClient(base_url.rstrip("/").removesuffix("/v1"), headers, timeout)
        self.name = f"the server at {self._http.base_url}"
        served = msgspec.json.decode(loop_thread().call(self._http.get("/v1/models")))
        try:
            self.model: str = served["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise BackendError(f"{self._http.base_url} is no Sapwood server.") from None

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def flush_cache(self) -> int:
        return msgspec.json.decode(loop_thread().call(self._http.post("/flush_cache", {})))["freed_tokens"]

    async def _send(self, fields: dict[str, Any], emit: Emit | None) -> tuple[list[NativeSample], TokenCounts]:
        if emit is None:
            answer = msgspec.json.decode(await self._http.post("/generate", fields), type=GenerateAnswer)
            return [_native([each]) for each in answer.choices], _usage(answer)
        parts: dict[int, list[Choice]] = {}
        usage = TokenCounts()
        async for data in self._http.events("/generate", {**fields, "stream": True}):
            answer = msgspec.json.decode(data, type=GenerateAnswer)
            usage = _usage(answer)
            for choice in answer.choices:
                parts.setdefault(choice.index, []).append(choice)
                if choice.index == 0 and choice.text:
                    emit(choice.text)
        if not parts or any(each[-1].finish_reason is None for each in parts.values()):
            raise BackendError(f"{self._http.base_url} ended a stream before its completion was.")
        return [_native(parts[index]) for index in sorted(parts)], usage

    async def _score(
        self, prompt: Runs, continuations: Sequence[str | list[int]]
    ) -> tuple[list[tuple[ScoredToken, ...]], TokenCounts]:
        body = {"prompt": prompt, "continuations": list(continuations)}
        answer = msgspec.json.decode(await self._http.post("/score", body), type=ScoreAnswer)
        return [_scored(each) for each in answer.scores], _usage(answer)

    async def _render(self, messages: list[dict[str, Any]], opens: bool) -> Rendering:
        body = {"messages": messages, "add_generation_prompt": opens}
        return msgspec.json.decode(await self._http.post("/render", body), type=Rendering)


def _usage(answer: GenerateAnswer | ScoreAnswer) -> TokenCounts:
    usage = answer.usage
    return TokenCounts(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens)


def _native(parts: list[Choice]) -> NativeSample:
    """A sample from its choice, or from all of them in a stream."""
    logprobs = [_token(token) for each in parts for token in each.logprobs or []]
    return NativeSample(
        "".join(each.text for each in parts),
        [token_id for each in parts for token_id in each.token_ids],
        parts[-1].finish_reason or "",
        parts[-1].matched_stop,
        logprobs or None,
    )


def _token(token: WireToken) -> AnswerToken:
    top = [(each.token_id, each.text, each.logprob) for each in token.top]
    return AnswerToken(token.token_id, token.text, bytes(token.bytes), token.logprob, top)


def _scored(score: ContinuationScore) -> tuple[ScoredToken, ...]:
    return tuple(ScoredToken(token.token_id, token.text, token.logprob or 0.0) for token in score.tokens)
