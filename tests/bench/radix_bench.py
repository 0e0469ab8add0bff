"""What the radix tree costs, beside floors measured in the same run: `python tests/bench/radix_bench.py`.

The tree has 100,000 nodes. A floor is the least that the job could cost with the same tools: comparing and copying
2,000 int32 in numpy for a prompt, popping a heap of 100,000 entries for an eviction.
"""

from __future__ import annotations

import gc
import heapq
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sapwood.radix.prefix_cache import PrefixCache

VOCABULARY = 32_000
SHARED = 1_000  # tokens that a measured prompt has in common with one in the tree
PROMPT = 2_000


@dataclass(frozen=True)
class Figure:
    """One measured operation: median seconds, and those of its floor."""

    name: str
    seconds: float
    floor: float

    def __str__(self) -> str:
        return (
            f"{self.name:<46} {self.seconds * 1e6:8.2f} us   floor {self.floor * 1e6:7.2f} us"
            f"   ratio {self.seconds / self.floor:6.1f}"
        )


@dataclass(frozen=True)
class Grown:
    """A cache whose tree has about `nodes` nodes, and some of the prompts in it."""

    cache: PrefixCache
    prompts: list[np.ndarray]
    nodes: int


def grow_tree(nodes: int = 100_000, seed: int = 0) -> Grown:
    """A tree of `nodes` nodes: 100 system prompts, and below each conversations that fork anywhere."""
    rng = np.random.default_rng(seed)
    cache = PrefixCache(total_slots=nodes * 12 + 2_000_000)
    systems = [rng.integers(0, VOCABULARY, SHARED, dtype=np.int32) for _ in range(100)]
    turns = list(systems)
    count = 0
    while count < nodes:
        for _ in range(max(1, (nodes - count) // 2)):  # a turn adds its own node, and one more where it splits an edge
            before = turns[int(rng.integers(len(turns)))]
            fork = int(rng.integers(SHARED, len(before) + 1))
            turn = np.concatenate([before[:fork], rng.integers(0, VOCABULARY, rng.integers(1, 20), dtype=np.int32)])
            turns.append(turn)
            serve(cache, turn)
        count = sum(1 for _ in cache.tree.nodes())
    return Grown(cache, systems, count)


def serve(cache: PrefixCache, prompt: np.ndarray) -> None:
    """What one prompt costs in all: match, lock, take slots for the rest, insert, unlock."""
    lease = cache.open("", prompt, len(prompt) - 1)
    if cache.grow(lease, len(prompt) - lease.length) is None:
        raise RuntimeError("the benchmark's pool is too small")
    cache.publish(lease, prompt)
    cache.close(lease)


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median_of(calls: list[Callable[[], object]]) -> float:
    """The median of single calls, each of them measured alone."""
    return statistics.median(timed(call) for call in calls)


def per_call(call: Callable[[], object], calls: int = 200, rounds: int = 15) -> float:
    """The median over rounds of the seconds per call in a tight loop: for what is too short to be measured alone."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls)
    return statistics.median(found)


def compare_and_copy(length: int) -> float:
    """The floor of a prompt: compare `length` int32 with as many and copy them and their slots."""
    left = np.arange(length, dtype=np.int32)
    right = left.copy()

    def call() -> None:
        if (left != right).any():
            raise RuntimeError("equal arrays differ")
        left.copy()
        right.copy()

    return median_of([call] * 400)


def pop_heap(entries: int = 100_000) -> float:
    """The floor of an eviction: pop the least of a heap of `entries` entries like the eviction queue's."""
    rng = np.random.default_rng(1)
    heap = [(stamp, serial, object()) for serial, stamp in enumerate(rng.permutation(entries).tolist())]
    heapq.heapify(heap)
    return median_of([lambda: heapq.heappop(heap)] * 2_000)


def serve_prompts(grown: Grown, count: int = 400) -> Figure:
    """Match and insert a prompt of 2,000 tokens, half of them in the tree already."""
    rng = np.random.default_rng(2)
    prompts = [
        np.concatenate(
            [
                grown.prompts[i % len(grown.prompts)],
                rng.integers(0, VOCABULARY, PROMPT - SHARED, dtype=np.int32),
            ]
        )
        for i in range(count)
    ]
    calls: list[Callable[[], object]] = [lambda p=p: serve(grown.cache, p) for p in prompts]
    return Figure("match + insert 2,000 tokens (1,000 held)", median_of(calls), compare_and_copy(PROMPT))


def serve_new_prompts(grown: Grown, count: int = 200) -> Figure:
    """Match and insert a prompt of 2,000 tokens of which the tree has none."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCABULARY, PROMPT, dtype=np.int32) for _ in range(count)]
    calls: list[Callable[[], object]] = [lambda p=p: serve(grown.cache, p) for p in prompts]
    return Figure("match + insert 2,000 tokens (none held)", median_of(calls), compare_and_copy(PROMPT))


def serve_held_prompts(grown: Grown, count: int = 400) -> Figure:
    """Match and insert a prompt of 2,000 tokens that the tree has already, all but the last token."""
    rng = np.random.default_rng(4)
    prompt = rng.integers(0, VOCABULARY, PROMPT, dtype=np.int32)
    serve(grown.cache, prompt)
    calls: list[Callable[[], object]] = [lambda: serve(grown.cache, prompt)] * count
    return Figure("match + insert 2,000 tokens (1,999 held)", median_of(calls), compare_and_copy(PROMPT))


def peek_prompts(grown: Grown) -> Figure:
    """Ask how much of a prompt of 1,000 tokens is held, where all of it is."""
    prompt = grown.prompts[0]
    seconds = per_call(lambda: grown.cache.peek("", prompt, len(prompt) - 1))
    return Figure("peek 1,000 tokens", seconds, compare_and_copy(SHARED))


def grow_leases(grown: Grown, running: int = 64) -> list[Figure]:
    """One more slot for decode: for one lease, and for each of 64 at once (seconds per lease)."""
    cache = grown.cache
    leases = [cache.open("", grown.prompts[0], 0) for _ in range(running)]
    floor = per_call(lambda: bytearray(1).append(0))
    single = per_call(lambda: cache.grow(leases[0], 1))
    together = per_call(lambda: cache.grow_each(leases), calls=20) / running
    for lease in leases:
        cache.close(lease)
    return [Figure("grow one lease by 1", single, floor), Figure("grow_each of 64, per lease", together, floor)]


def evict_leaves(grown: Grown, count: int = 2_000) -> Figure:
    """Evict one leaf and hand its slots to a lease, in a pool that has no free slot left."""
    cache = grown.cache
    lease = cache.open("", grown.prompts[0], 0)
    cache.grow(lease, cache.free)
    call = lambda: cache.grow(lease, cache.free + 1)  # noqa: E731
    figure = Figure("evict one leaf", median_of([call] * count), pop_heap())
    cache.close(lease)
    return figure


def flush_all(grown: Grown) -> Figure:
    """Drop the whole tree, per node."""
    nodes = sum(1 for _ in grown.cache.tree.nodes())
    return Figure(f"flush {nodes} nodes, per node", timed(grown.cache.flush) / nodes, pop_heap())


def measure(nodes: int = 100_000) -> list[Figure]:
    """Every figure, in a tree of `nodes` nodes. The collector is off as it would only add noise."""
    grown = grow_tree(nodes)
    gc.disable()
    try:
        return [
            serve_prompts(grown),
            serve_new_prompts(grown),
            serve_held_prompts(grown),
            peek_prompts(grown),
            *grow_leases(grown),
            evict_leaves(grown),
            flush_all(grown),
        ]
    finally:
        gc.enable()


if __name__ == "__main__":
    for figure in measure():
        print(figure)
