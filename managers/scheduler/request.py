"""One sequence as the scheduler sees it: its tokens, what of them is computed, and how it stands in the queue."""

from __future__ import annotations

import numpy as np

from ...radix.prefix_cache import Lease
from ..messages import Finish, TokenChunk, TokenizedRequest, TopLogprobs, unpack_ids

SAMPLE_DELAY = 8


class Request:
    """A tokenized request while it waits or runs.

    `tokens` are the known ids, prompt first; `produced` counts the completion tokens among them and `expected` counts
    those plus the ones that steps in flight will sample. While it runs, `lease` holds its slots (`lease.length`
    positions are computed or planned), `row` is its row in the worker, and `synced` counts the leading positions
    whose slots the worker has been told (None: the worker does not know the row yet).
    """

    def __init__(self, message: TokenizedRequest, serial: int) -> None:
        """serial: how many sequences came before. Of one request's many samples or continuations each later one queues
        as if it had come `SAMPLE_DELAY` sequences after the one before, so that a crowd does not hold up everyone."""
        prompt = unpack_ids(message.token_ids)
        self.request_id = message.request_id
        self.index = message.index
        self.sampling = message.sampling
        self.stop_ids = message.stop_ids
        self._stop_set = frozenset(message.stop_ids)
        self.namespace = message.namespace
        self.priority = message.priority
        self.serial = serial
        self.arrival = serial + SAMPLE_DELAY * message.index
        self.prompt_length = len(prompt)
        # Completions are often far shorter than their cap: start with room for some of it and grow.
        self._tokens = np.empty(self.prompt_length + min(message.sampling.max_tokens, 64), dtype=np.int32)
        self._tokens[: self.prompt_length] = prompt
        self.produced = 0
        self.expected = 0
        self.lease: Lease | None = None
        self.row = -1
        self.synced: int | None = None
        self.prefill_until = 0
        self.publish_until = 0
        self.finished = False
        self.retracted = False
        self.bypassed = 0
        self.cached_tokens = 0
        self.score_start = message.score_start
        self.score_top = message.score_top
        self.scored: list[float] = []
        self.scored_top: list[TopLogprobs] = []

    @property
    def key(self) -> tuple[str, int]:
        return (self.request_id, self.index)

    @property
    def known(self) -> int:
        """Tokens whose ids are known: the prompt and what was produced."""
        return self.prompt_length + self.produced

    @property
    def tokens(self) -> np.ndarray:
        """The known token ids; int32 [known], a view."""
        return self._tokens[: self.known]

    def admit(self, lease: Lease, row: int) -> None:
        """Take a row and a lease. What is known now is prefilled; of that, only what others could match (never the
        last token, nor scored ones) enters the tree before the end, so a prefill never finds itself a duplicate."""
        self.lease, self.row, self.synced = lease, row, None
        self.prefill_until = self.known
        self.publish_until = self.match_limit

    def leave(self) -> None:
        """Give the row and the (closed) lease up."""
        self.lease, self.row, self.synced = None, -1, None

    @property
    def to_prefill(self) -> int:
        """Positions still to be prefilled before the next token can be sampled; 0 for one that does not run."""
        return max(self.prefill_until - self.lease.length, 0) if self.lease is not None else 0

    @property
    def decodes(self) -> bool:
        """Whether its next step computes exactly its newest token, known or still in flight, and samples another."""
        return (
            self.lease is not None
            and self.wants_more
            and self.lease.length >= self.prefill_until
            and self.lease.length + 1 == self.prompt_length + self.expected
        )

    @property
    def wants_more(self) -> bool:
        """Whether another token may be sampled after the ones in flight."""
        return self.expected < self.sampling.max_tokens

    @property
    def tokens_to_come(self) -> int:
        return self.sampling.max_tokens - self.expected

    @property
    def next_score(self) -> int | None:
        """The first prompt position whose log-probability is still wanted."""
        if self.score_start is None or self.score_start + len(self.scored) >= self.prompt_length:
            return None
        return self.score_start + len(self.scored)

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache: the last one must be computed to get logits, and so must
        the position before the first one whose log-probability is wanted."""
        limit = self.known - 1
        score = self.next_score
        return limit if score is None else min(limit, score - 1)

    def append(self, token_id: int) -> Finish | None:
        """Take a sampled token; returns why the completion ends with it, None if it goes on."""
        if self.known == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.known] = token_id
        self.produced += 1
        self.expected = max(self.expected, self.produced)
        if token_id in self._stop_set:
            return Finish("stop", matched=token_id)
        if self.produced >= self.sampling.max_tokens:
            return Finish("length")
        return None

    def chunk(
        self,
        token_ids: list[int],
        logprobs: list[float],
        top: list[TopLogprobs],
        finish: Finish | None,
    ) -> TokenChunk:
        """A message to the tokenizer about this sample; the prompt's scores come with the first one once whole."""
        scored = scored_top = None
        if self.score_start is not None and self.next_score is None and self.scored:
            scored, scored_top = self.scored, self.scored_top
            self.score_start, self.scored, self.scored_top = None, [], []
        return TokenChunk(
            request_id=self.request_id,
            index=self.index,
            token_ids=token_ids,
            logprobs=logprobs,
            top=top,
            cached_tokens=self.cached_tokens,
            scored=scored,
            scored_top=scored_top,
            finish=finish,
        )

    def ending(self, finish: Finish) -> TokenChunk:
        """The last message about this sample, without tokens."""
        return self.chunk([], [], [], finish)
