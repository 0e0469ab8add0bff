"""How fast the CPU kernels are, beside what this machine can do, measured in the same run.

    python tests/bench/kernel_bench.py [MODEL.gguf] [--threads N] [--kv-dtype float32]

Prints the achieved GFLOP/s of a model's matrix products beside those of a large sgemm by torch, and the GB/s beside a
large read; then attention with and without groups, and whole steps. Each figure is the best of many repetitions, since
other processes only ever make them worse.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from sapwood.runtime.attention.base import SharedPrefix
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.runner import ModelStep
from sapwood.runtime.kernels import bindings
from sapwood.runtime.kernels.decoder import NativeDecoder
from sapwood.runtime.kernels.loading import load_weights
from sapwood.runtime.weights import hub

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
SECONDS = 0.6  # for each figure
SLOTS = 36_000


def best(run: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - started < SECONDS:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return min(times)


def ceilings() -> tuple[float, float]:
    """GFLOP/s of a large sgemm and GB/s of a large read, both by torch on all of its threads."""
    size = 1536
    a, b, out = (torch.randn(size, size) for _ in range(3))
    gflops = 2 * size**3 / best(lambda: torch.mm(a, b, out=out)) / 1e9
    large = torch.ones(1 << 26)
    return gflops, large.numel() * 4 / best(large.sum) / 1e9


def bounds(counts: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def step_of(entries: list[tuple[np.ndarray, int]], shared: int = 0) -> ModelStep:
    """Each entry: its slots, and how many queries it has at their end. shared: how many first slots are the same."""
    counts = [queries for _, queries in entries]
    tokens = sum(counts)
    return ModelStep(
        token_ids=np.arange(tokens, dtype=np.int32) % 1000,
        positions=np.concatenate([np.arange(len(slots) - n, len(slots), dtype=np.int32) for slots, n in entries]),
        slots=np.concatenate([slots[len(slots) - n :] for slots, n in entries]).astype(np.int32),
        qo_indptr=bounds(counts),
        kv_indptr=bounds([len(slots) for slots, _ in entries]),
        kv_indices=np.concatenate([slots for slots, _ in entries]).astype(np.int32),
        output_rows=bounds(counts)[1:] - 1,
        shared=[SharedPrefix(range(len(entries)), shared)] if shared else [],
    )


def decode(batch: int, context: int) -> ModelStep:
    return step_of([(np.arange(i * context, (i + 1) * context), 1) for i in range(batch)])


def few_shot(batch: int, prefix: int, tail: int, grouped: bool) -> ModelStep:
    slots = [np.concatenate((np.arange(prefix), prefix + i * tail + np.arange(tail))) for i in range(batch)]
    return step_of([(one, 1) for one in slots], prefix if grouped else 0)


def bench_products(decoder: NativeDecoder, gflops: float, gbs: float) -> None:
    """Steps of so many requests of one token: the matrix products, and what little else there is in such a step."""
    matrices = decoder.weights.matrices()
    weights, size = sum(m.n * m.k for m in matrices), sum(m.nbytes for m in matrices)
    print(f"\nsteps that are all matrix products: {weights / 1e6:.1f}M weights in {size / 1e6:.1f} MB")
    print(f"{'rows':>5} {'ms':>8} {'GFLOP/s':>8} {'of sgemm':>9} {'GB/s':>6} {'of read':>8}")
    for rows in ROWS:
        step = decode(rows, 1)
        seconds = best(lambda step=step: decoder.logits(decoder.forward(step)))
        did, read = 2 * weights * rows / seconds / 1e9, size / seconds / 1e9
        print(f"{rows:>5} {seconds * 1e3:>8.2f} {did:>8.1f} {did / gflops:>9.0%} {read:>6.1f} {read / gbs:>8.0%}")


def bench_steps(decoder: NativeDecoder, gflops: float) -> None:
    """Whole steps and the attention in them, in all layers. The products alone: queries by keys and weights by values,
    at the rate of the large sgemm; a group does no fewer of them, so it cannot be faster than that."""
    config = decoder.config

    def attention(step: ModelStep) -> float:
        q = (
            np.random.default_rng(0)
            .normal(size=(len(step.token_ids), config.heads, config.head_dim))
            .astype(np.float32)
        )
        return best(lambda: [decoder.attention(layer, step, q) for layer in range(config.layers)])

    print(f"\n{'step':<44} {'ms':>8} {'attention':>10}")
    cases = {f"decode, {b} requests of {n} tokens": decode(b, n) for b, n in ((1, 50), (1, 1000), (16, 300), (64, 150))}
    cases |= {f"prefill, 256 tokens up to {n}": step_of([(np.arange(n), 256)]) for n in (256, 1024, 4096)}
    for name, step in cases.items():
        seconds = best(lambda step=step: decoder.logits(decoder.forward(step)))
        print(f"{name:<44} {seconds * 1e3:>8.2f} {attention(step) * 1e3:>10.2f}")

    title = "attention of decodes over a shared prefix"
    print(f"\n{title:<44} {'alone':>8} {'grouped':>10} {'ratio':>6} {'products alone':>15} {'ratio':>6}")
    for batch, prefix, tail in ((32, 4000, 24), (16, 1000, 40)):
        alone, grouped = (attention(few_shot(batch, prefix, tail, way)) for way in (False, True))
        name = f"{batch} requests, {prefix} tokens shared"
        products = 4 * config.layers * config.heads * config.head_dim * batch * (prefix + tail) / gflops / 1e9
        figures = f"{alone * 1e3:>8.2f} {grouped * 1e3:>10.2f} {alone / grouped:>6.2f}"
        print(f"{name:<44} {figures} {products * 1e3:>15.2f} {alone / products:>6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kv-dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = bindings.Library(bindings.library_path())
    config, weights = load_weights(hub.resolve(options.model), library, options.threads)
    pool = KVPool(config, SLOTS, getattr(torch, options.kv_dtype))
    for layer in range(config.layers):
        for tensor in pool.layer(layer):
            tensor.fill_(0.1)
    decoder = NativeDecoder(config, weights, pool, library, options.threads)
    gflops, gbs = ceilings()
    print(f"{library.isa}, {options.threads} threads; ceilings: sgemm {gflops:.0f} GFLOP/s, read {gbs:.1f} GB/s")
    bench_products(decoder, gflops, gbs)
    bench_steps(decoder, gflops)
    gflops, gbs = ceilings()
    print(f"\nceilings again: sgemm {gflops:.0f} GFLOP/s, read {gbs:.1f} GB/s")


if __name__ == "__main__":
    main()
