"""Runs a Scheduler against the fake worker, with one step in flight as in the real loop, and collects the answers."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from fake_worker import FakeWorker

from sapwood.constrained.spec import Compiled
from sapwood.managers.scheduler.scheduler import Scheduler
from sapwood.managers.wire.answers import CacheMiss, Effort, Finish, TokenChunk
from sapwood.managers.wire.grammars import ForgetGrammar, GrammarReady
from sapwood.managers.wire.requests import TokenizedRequest
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.radix.tier import Tier
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import StepPlan
from sapwood.runtime.wanted import PromptLogprobs, Wanted


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scored: list[float] | None = None
    cached_tokens: int = 0
    finish: Finish | None = None
    effort: Effort | None = None
    miss: CacheMiss | None = None
    steps: list[int] = field(default_factory=list)  # when each token came


class Harness:
    def __init__(
        self,
        *,
        slots: int = 1000,
        chunk: int = 64,
        max_running: int = 8,
        max_queue: int = 1000,
        max_context: int = 10_000,
        schedule: str = "lpm",
        prefix_cache: bool = True,
        speculation: bool = True,
        tier: Tier | None = None,
    ) -> None:
        self.cache = PrefixCache(slots, enabled=prefix_cache, poison=True, tier=tier)
        self.scheduler = Scheduler(
            self.cache,
            max_context=max_context,
            chunk_tokens=chunk,
            max_running=max_running,
            max_queue=max_queue,
            schedule=schedule,
            speculation=speculation,
        )
        self.worker = FakeWorker(slots)
        self.answers: dict[tuple[str, int], Answer] = {}
        self.plans: deque[StepPlan] = deque()
        self.steps = 0

    def submit(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 4,
        *,
        index: int = 0,
        stop_ids: list[int] | None = None,
        namespace: str = "",
        priority: int = 0,
        score_start: int | None = None,
        logprobs: int | None = None,
        grammar: str | None = None,
        seed: int = 0,
        prediction: list[int] | None = None,
    ) -> None:
        message = TokenizedRequest(
            request_id=name,
            index=index,
            token_ids=pack_ids(prompt),
            sampling=Sampling(max_tokens=max_tokens, seed=seed, logprobs=logprobs),
            stop_ids=stop_ids or [],
            namespace=namespace,
            priority=priority,
            wanted=Wanted("logprobs", score_start) if score_start is not None else None,
            grammar=Compiled(grammar, "llguidance", b"") if grammar is not None else None,
            prediction=pack_ids(prediction or []),
        )
        self.answers[name, index] = Answer()
        self._take(self.scheduler.submit(message))
        self.scheduler.audit()

    def load_grammars(self) -> None:
        """The worker loads what was ordered, and forgets what it may."""
        for order in self.scheduler.take_grammars():
            if isinstance(order, ForgetGrammar):
                self.worker.grammars.remove(order.key)
                continue
            self.loaded(order.grammar.key)
            self.scheduler.audit()

    def loaded(self, key: str, error: str = "") -> None:
        """The worker has loaded a grammar, or could not."""
        if not error:
            self.worker.grammars.add(key)
        self._take(self.scheduler.grammar_ready(GrammarReady(key, error)))

    def step(self) -> bool:
        """Plan while the pipeline has room, then let the worker finish one step. False: there was nothing to do."""
        self.load_grammars()
        while (plan := self.scheduler.plan()) is not None:
            self.scheduler.audit()
            self.plans.append(plan)
        if not self.plans:
            return False
        self._take(self.scheduler.apply(self.worker.execute(self.plans.popleft())))
        self.scheduler.audit()
        self.steps += 1
        return True

    def run(self, limit: int = 20_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still running after {limit} steps")

    def _take(self, chunks: list[TokenChunk]) -> None:
        for chunk in chunks:
            answer = self.answers[chunk.request_id, chunk.index]
            assert answer.finish is None, "a chunk came after the end"
            answer.token_ids += chunk.token_ids
            answer.logprobs += chunk.logprobs
            answer.steps += [self.steps] * len(chunk.token_ids)
            answer.cached_tokens = chunk.cached_tokens
            answer.finish, answer.effort = chunk.finish, chunk.effort
            if chunk.miss is not None:
                assert answer.miss is None, "it was said twice where the prompt left the cached path"
                answer.miss = chunk.miss
            if isinstance(chunk.prompt, PromptLogprobs):
                assert answer.scored is None, "the scores came twice"
                answer.scored = chunk.prompt.logprobs

    def assert_idle(self) -> None:
        """Nothing runs, waits or is held; every slot is free or evictable."""
        assert self.scheduler.running == self.scheduler.waiting == 0
        assert self.cache.private == self.cache.pinned == 0
        assert self.cache.free + self.cache.evictable == self.cache.total


def numbers(seed: int, count: int) -> list[int]:
    """Token ids at random, the same for the same seed."""
    return [random.Random(f"{seed}/{place}").randrange(50) for place in range(count)]
