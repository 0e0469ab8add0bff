"""One sequence as the scheduler sees it: its tokens, what of them is computed, and how it stands in the queue."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ...radix.lease import Lease
from ...runtime.records import unpack_ids
from ...runtime.step import SampledLogprob
from ...runtime.wanted import PromptAnswer, Wanted, joined
from ..wire.answers import CacheMiss, Effort, Finish, TokenChunk
from ..wire.requests import TokenizedRequest
from .speculation_state import SpeculationState

SAMPLE_DELAY = 8


class Request:
    """A tokenized request while it waits or runs.

    `tokens` are the known ids, prompt first; `produced` counts the completion tokens among them. `steps_in_flight`
    counts the steps under way that have it, and `in_flight` those of them that will add some tokens: one token each,
    unless the request is `stepwise`; then at most one is under way, and it may add several or (with a grammar) take
    some back. While it runs, `lease` holds its slots (`lease.length` positions are computed or planned), `row` is its
    row in the worker, and `synced` counts the leading positions whose slots the worker has been told (None: the worker
    does not know the row yet). `adopted_until`: all positions from there on it computed itself. `retried`: it started
    again because what it read or computed was not finite; it does so once.
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
        self.in_flight = 0
        self.steps_in_flight = 0
        self.held = 0  # of the completion's last tokens; the grammar may take them back
        self.grammar = message.grammar
        self.prediction = unpack_ids(message.prediction)
        self.speculates = False
        self.speculation = SpeculationState()
        self._sent = 0  # completion tokens
        self._logprobs: list[SampledLogprob] = []  # of the completion tokens from `_sent` on, where they are wanted
        self._passes = self._speculated = self._accepted = self._forced = 0
        self.lease: Lease | None = None
        self.row = -1
        self.synced: int | None = None
        self.prefill_until = 0
        self.publish_until = 0
        self.finished = False
        self.retracted = False
        self.adopted_until = 0
        self.retried = False
        self.bypassed = 0
        self.cached_tokens = 0
        self.miss: CacheMiss | None = None  # where the prompt left the cached path
        self._miss_sent = self.index > 0
        self.wanted = message.wanted  # until it was sent
        self.answers: list[PromptAnswer] = []  # parts of it

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

    def drop_held(self) -> None:
        """Go back to where the grammar could not take anything back, so that its search can begin anew."""
        self.rewind(self.held)
        self.held = 0

    def admit(self, lease: Lease, row: int) -> None:
        """Take a row and a lease. What is known is prefilled; of that, only what others could match (never the
        last token, nor those of which something is wanted) enters the tree before the end, so a prefill never finds
        itself a duplicate. One that starts again shares no prefill: what fails it then is its own."""
        self.lease, self.row, self.synced = lease, row, None
        self.prefill_until = self.known
        self.publish_until = lease.length if self.retried else self.match_limit
        self.adopted_until = 0

    def leave(self) -> None:
        """Give the row and the (closed) lease up."""
        self.lease, self.row, self.synced = None, -1, None

    @property
    def to_prefill(self) -> int:
        """Positions still to be prefilled before the next token can be sampled; 0 for one that does not run."""
        return max(self.prefill_until - self.lease.length, 0) if self.lease is not None else 0

    @property
    def stepwise(self) -> bool:
        """Whether a step's outcome must be known before the next one can be planned."""
        return self.speculates or self.grammar is not None

    @property
    def pending(self) -> int:
        """Positions, known or in flight, that are not computed yet; 0 for one that does not run."""
        return self.prompt_length + self.expected - self.lease.length if self.lease is not None else 0

    @property
    def decodes(self) -> bool:
        """Whether its next step computes what its completion gained last, known or still in flight, and samples."""
        return (
            self.lease is not None
            and self.wants_more
            and self.lease.length >= self.prefill_until
            and self.pending > 0
            and not (self.stepwise and self.in_flight)
        )

    @property
    def expected(self) -> int:
        """Completion tokens, with one for each step in flight."""
        return self.produced + self.in_flight

    @property
    def wants_more(self) -> bool:
        """Whether another token may be sampled after the ones in flight."""
        return self.expected < self.sampling.max_tokens

    @property
    def tokens_to_come(self) -> int:
        return self.sampling.max_tokens - self.expected

    @property
    def still_wanted(self) -> Wanted | None:
        """What is wanted of the prompt's positions and was not computed yet."""
        if self.wanted is None:
            return None
        start = self.wanted.start + sum(map(len, self.answers))
        return replace(self.wanted, start=start) if start < self.prompt_length else None

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache: the last one must be computed to get logits, and so must
        those whose hidden states are wanted."""
        limit = self.known - 1
        wanted = self.still_wanted
        return limit if wanted is None else min(limit, wanted.start - wanted.lag)

    def append(self, token_id: int) -> Finish | None:
        """Take a token; returns why the completion ends with it, None if it goes on."""
        if self.known == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.known] = token_id
        self.produced += 1
        if token_id in self._stop_set:
            return Finish("stop", matched=token_id)
        if self.produced >= self.sampling.max_tokens:
            return Finish("length")
        return None

    def rewind(self, count: int) -> None:
        """Take back the last tokens of the completion, none of which was sent."""
        assert count <= self.produced - self._sent, "tokens that were sent are to be taken back"
        self.produced -= count
        del self._logprobs[max(self.produced - self._sent, 0) :]

    def note_step(self, speculated: int, accepted: int, forced: int, *, is_pass: bool) -> None:
        """Count what came of a step; `is_pass`: it computed completion tokens."""
        self._passes += is_pass
        self._speculated += speculated
        self._accepted += accepted
        self._forced += forced

    def keep_logprobs(self, logprobs: list[SampledLogprob]) -> None:
        """Log-probabilities of the tokens appended last, where they are wanted."""
        self._logprobs += logprobs

    def chunk(self, finish: Finish | None) -> TokenChunk:
        """A message to the tokenizer about what of this sample may be shown and was not yet; what is wanted of the
        prompt comes with the first one once whole. The last one shows everything, unless the request fails."""
        end = self.produced
        if finish is None or finish.reason == "error":
            end = max(end - self.held, self._sent)
        token_ids = self.tokens[self.prompt_length + self._sent : self.prompt_length + end].tolist()
        logprobs, self._logprobs = self._logprobs[: len(token_ids)], self._logprobs[len(token_ids) :]
        self._sent = end
        prompt = None
        if self.answers and self.still_wanted is None:
            prompt = joined(self.answers)
            self.wanted, self.answers = None, []
        miss, self._miss_sent = (None if self._miss_sent else self.miss), True
        return TokenChunk(
            request_id=self.request_id,
            index=self.index,
            token_ids=token_ids,
            logprobs=[each.logprob for each in logprobs],
            top=[each.top for each in logprobs],
            cached_tokens=self.cached_tokens,
            prompt=prompt,
            finish=finish,
            effort=Effort(self._passes, self._speculated, self._accepted, self._forced),
            miss=miss,
        )
