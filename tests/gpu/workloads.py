"""The scheduler and the worker's steps in one process, and the workloads of `sapwood bench` in token ids: what the two
give together, without HTTP, text and sockets."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from sapwood.managers.scheduler.scheduler import Scheduler
from sapwood.managers.wire.requests import TokenizedRequest
from sapwood.managers.worker.steps import Steps
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.runtime.execution.executor import Executor
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import StepResult


class Loop:
    """Serves requests to their end."""

    def __init__(self, executor: Executor, *, max_running: int, chunk_tokens: int, speculation: bool = False) -> None:
        self._cache = PrefixCache(executor.pool.slots)
        self._scheduler = Scheduler(
            self._cache,
            max_context=executor.max_context,
            chunk_tokens=chunk_tokens,
            max_running=max_running,
            max_queue=4096,
            speculation=speculation,
        )
        self._results: list[StepResult] = []
        no_grammars: Any = None
        self._steps = Steps(executor, no_grammars, self._results.append, lambda: 0)
        self._served = 0

    def serve(self, prompts: list[list[int]], tokens: int, *, temperature: float = 0.0) -> list[list[int]]:
        """`tokens` tokens for each prompt, all sent at once. Raises RuntimeError where a request fails."""
        completions: dict[str, list[int]] = {}
        for prompt in prompts:
            name = str(self._served)
            self._served += 1
            completions[name] = []
            sampling = Sampling(max_tokens=tokens, seed=self._served, temperature=temperature, ignore_eos=True)
            request = TokenizedRequest(name, 0, pack_ids(prompt), sampling, [], "", 0)
            for refused in self._scheduler.submit(request):
                raise RuntimeError(f"refused: {refused.finish}")
        left = len(prompts)
        while left:
            plan = self._scheduler.plan()
            if plan is not None:
                self._steps.run(plan)
            else:
                self._steps.settle()
            for result in self._results:
                for chunk in self._scheduler.apply(result):
                    completions[chunk.request_id] += chunk.token_ids
                    if chunk.finish is not None:
                        if chunk.finish.reason == "error":
                            raise RuntimeError(chunk.finish.message)
                        left -= 1
            self._results.clear()
        self._steps.settle()
        for result in self._results:
            self._scheduler.apply(result)
        self._results.clear()
        self._scheduler.audit()
        return list(completions.values())

    def measured(self, rounds: list[tuple[list[list[int]], int]]) -> dict[str, float]:
        """Serves one round after the other from an empty cache; tokens per second over all."""
        self._scheduler.flush()
        before = self._scheduler.counters.cached_tokens
        began = time.perf_counter()
        prompt = completion = 0
        for prompts, tokens in rounds:
            self.serve(prompts, tokens)
            prompt += sum(map(len, prompts))
            completion += tokens * len(prompts)
        seconds = time.perf_counter() - began
        cached = self._scheduler.counters.cached_tokens - before
        return {
            "seconds": round(seconds, 3),
            "out_tps": round(completion / seconds, 1),
            "all_tps": round((completion + prompt) / seconds, 1),
            "cached_share": round(cached / prompt, 3),
        }


def w3_batch_unique(random: np.random.Generator, vocab: int, scale: float) -> list[tuple[list[list[int]], int]]:
    """Many prompts with nothing in common."""
    return [([ids(random, vocab, 130) for _ in range(max(1, int(48 * scale)))], 64)]


def w4_few_shot(random: np.random.Generator, vocab: int, scale: float) -> list[tuple[list[list[int]], int]]:
    """One long shared prefix, short tails, short answers."""
    shared = ids(random, vocab, 1300)
    return [([shared + ids(random, vocab, 32) for _ in range(max(1, int(64 * scale)))], 16)]


def w5_tree(random: np.random.Generator, vocab: int, scale: float) -> list[tuple[list[list[int]], int]]:
    """Three levels of four branches each, every level sent as its full text (with random answers in it)."""
    rounds = []
    level = [ids(random, vocab, 650)]
    for _ in range(3):
        level = [parent + ids(random, vocab, 26) for parent in level for _ in range(4)]
        rounds.append((level, 24))
        level = [one + ids(random, vocab, 24) for one in level[: max(1, int(16 * scale))]]
    return rounds


def ids(random: np.random.Generator, vocab: int, count: int) -> list[int]:
    return random.integers(0, vocab, count).tolist()
