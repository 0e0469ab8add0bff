"""Promise 3 with a tier below the slots: what went out to it and came back is what was computed, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.managers.scheduler.scheduler import Scheduler
from sapwood.managers.wire.requests import TokenizedRequest
from sapwood.managers.worker.steps import Steps
from sapwood.radix.memory_tier import MemoryTier
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.runtime.execution.executor import Executor
from sapwood.runtime.execution.loading import load_executor
from sapwood.runtime.options import ExecutorOptions
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import StepResult

SLOTS, PLACES = 300, 2000


class Rig:
    """The scheduler and the worker's steps in one process, with or without a tier; audited after every step."""

    def __init__(self, executor: Executor, slots: int, tier: MemoryTier | None = None) -> None:
        self.cache = PrefixCache(slots, poison=True, tier=tier)
        self.scheduler = Scheduler(
            self.cache, max_context=SLOTS, chunk_tokens=48, max_running=4, max_queue=100, speculation=False
        )
        self._results: list[StepResult] = []
        no_grammars: Any = None
        self._steps = Steps(executor, no_grammars, self._results.append, lambda: 0)
        self.copied = {True: 0, False: 0}

    def ask(self, prompt: list[int]) -> tuple[list[int], list[float], int]:
        """Token ids, their log-probabilities, and how much of the prompt was cached."""
        sampling = Sampling(max_tokens=12, seed=5, temperature=0.8, logprobs=0, ignore_eos=True)
        self.scheduler.submit(TokenizedRequest("r", 0, pack_ids(prompt), sampling, [], "", 0))
        token_ids: list[int] = []
        logprobs: list[float] = []
        while True:
            plan = self.scheduler.plan()
            if plan is not None:
                for copy in plan.copies:
                    self.copied[copy.out] += len(copy.slots) // 4
                self._steps.run(plan)
            self._steps.settle()
            results, self._results[:] = list(self._results), []
            for result in results:
                for chunk in self.scheduler.apply(result):
                    token_ids += chunk.token_ids
                    logprobs += chunk.logprobs
                    if chunk.finish is not None:
                        assert chunk.finish.reason == "length"
                        self.scheduler.audit()
                        return token_ids, logprobs, chunk.cached_tokens
            self.scheduler.audit()


@pytest.mark.parametrize(("backend", "kv_dtype"), [("cpu", "float32"), ("cpu", "bfloat16"), ("torch", "float32")])
def test_warm_from_the_tier_equals_warm_from_slots_and_cold(tiny_path: Path, backend: str, kv_dtype: str) -> None:
    options = ExecutorOptions(
        device="cpu", attention_backend=backend, kv_dtype=kv_dtype, kv_tokens=PLACES, max_context=SLOTS, threads=1
    )
    loaded = load_executor(tiny_path, options)
    rng = random.Random(0)
    prompts = [[rng.randrange(250) for _ in range(rng.randrange(60, 200))] for _ in range(6)]

    def executor(tier_places: int = 0) -> Executor:
        return Executor(loaded.runner, max_running=4, max_context=SLOTS, tier_places=tier_places)

    kept = Rig(executor(), PLACES)
    cold = [kept.ask(prompt) for prompt in prompts]
    from_slots = [kept.ask(prompt) for prompt in prompts]
    if backend == "cpu":  # torch's sums depend on how many tokens are computed at once
        assert [each[:2] for each in from_slots] == [each[:2] for each in cold]
    small = Rig(executor(PLACES), SLOTS, MemoryTier(PLACES))
    for prompt in prompts:
        small.ask(prompt)
    restored = 0
    for _ in range(2):
        for prompt, expected in zip(prompts, from_slots):
            held = small.cache.peek("", np.array(prompt, np.int32), len(prompt) - 1)
            assert small.ask(prompt) == expected
            restored += len(prompt) - 1 - held
    assert restored > 400
    assert min(small.copied.values()) > 400
