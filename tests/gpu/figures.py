"""The measurements of a GPU: what is right, and how fast it is beside the machine's own ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from models import LLAMA_8B, SMALL, TINY, Place, make_runner, random_model
from workloads import Loop, w3_batch_unique, w4_few_shot, w5_tree

from sapwood.runtime.attention import paging
from sapwood.runtime.attention.base import AttentionBatch, SharedPrefix
from sapwood.runtime.attention.flashinfer import FlashInferAttention
from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.execution.executor import Executor
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.runner import ModelStep, TorchRunner
from sapwood.runtime.model.config import ModelConfig, Rope

Figures = dict[str, Any]


class Skipped(Exception):
    """A section has nothing to measure here; the message says why."""


def seconds_of(place: Place, run: Callable[[], object], times: int) -> float:
    """Mean seconds of a run, launched one after the other; one more before warms up."""
    times = 2 if place.rehearsal else times
    run()
    place.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        run()
    place.synchronize()
    return (time.perf_counter() - began) / times


def bounds(counts: Any) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


# --- the machine ------------------------------------------------------------------------------------------------------


def ceilings(place: Place) -> Figures:
    """GB/s of a large copy (bytes read and written) and TFLOP/s of a large matrix product."""
    size = 1 << 20 if place.rehearsal else 1 << 30
    source = torch.ones(size, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    copy = 2 * size / seconds_of(place, lambda: target.copy_(source), 50)
    side = 64 if place.rehearsal else 8192
    a, b = torch.randn(2, side, side, device=place.device).to(place.dtype)
    product = 2 * side**3 / seconds_of(place, lambda: a @ b, 30)
    return {"copy_gbs": copy / 1e9, "matmul_tflops": product / 1e12}


# --- what is right ----------------------------------------------------------------------------------------------------


def attention_errors(
    place: Place, head_dim: int, kv_dtype: torch.dtype, *, window: int = 0, cap: float = 0.0
) -> Figures:
    """The largest difference from torch's attention over random batches. window: that of the second of two layers; cap:
    that of scores."""
    if place.flashinfer is None:
        raise Skipped("FlashInfer is not installed")
    random = np.random.default_rng(0)
    errors = []
    for heads, kv_heads in [(8, 2)] if place.rehearsal else [(8, 8), (8, 2), (9, 3), (32, 4)]:
        shape = ModelConfig(
            "llama", 8, heads * head_dim, 8, 2, heads, kv_heads, head_dim, 1e-5, 65_536, Rope(), True, (),
            windows=(0, window), score_cap=cap,
        )  # fmt: skip
        for _ in range(3 if place.rehearsal else 12):
            errors.append(_attention_error(shape, kv_dtype, place, random))
    return {"max_error": max(errors), "ok": max(errors) < 0.03}


def _attention_error(shape: ModelConfig, kv_dtype: torch.dtype, place: Place, random: np.random.Generator) -> float:
    longest = 40 if place.rehearsal else 3000
    entries = int(random.integers(1, 12))
    queries = np.ones(entries, np.int64) if random.random() < 0.4 else random.integers(1, longest // 8, entries)
    own = queries + random.integers(0, longest // 2, entries)
    shared = int(random.integers(1, longest)) if random.random() < 0.6 and entries > 1 else 0
    slots = random.permutation(shared + int(own.sum())).astype(np.int32)
    lists = np.split(slots[shared:], np.cumsum(own)[:-1])
    members = sorted(random.permutation(entries)[: max(2, entries // 2)].tolist()) if shared else []
    lists = [np.concatenate((slots[:shared], one)) if i in members else one for i, one in enumerate(lists)]
    groups = [SharedPrefix(members, shared)] if members else []
    batch = AttentionBatch(bounds(queries), bounds([len(one) for one in lists]), np.concatenate(lists), groups)
    pool = KVPool(shape, len(slots), kv_dtype, place.device)
    plain = KVPool(shape, len(slots), torch.float32, place.device)
    everywhere = torch.arange(len(slots), device=place.device)
    keys, values = torch.randn(2, len(slots), shape.kv_heads, shape.head_dim, device=place.device)
    for layer in range(2):
        pool.store(layer, everywhere, keys, values)
        plain.store(layer, everywhere, *(each[: len(slots)].to(torch.float32) for each in pool.layer(layer)))
    q = torch.randn(int(batch.qo_indptr[-1]), shape.heads, shape.head_dim, device=place.device).to(place.dtype)
    ours, theirs = FlashInferAttention(shape, pool, place.dtype), TorchAttention(shape, plain)
    with patch.object(paging, "MIN_SAVED", 0):  # so that groups make levels whatever their size
        ours.plan(batch)
    theirs.plan(batch)
    return max(float((ours.run(layer, q).float() - theirs.run(layer, q.float())).abs().max()) for layer in range(2))


def graphs_and_flight(place: Place) -> Figures:
    """A small model serves the same requests with graphs and without, ahead and step by step: the same tokens?"""
    config = TINY if place.rehearsal else SMALL
    model = random_model(config, place)
    random = np.random.default_rng(1)
    lengths = (3, 9, 20) if place.rehearsal else (3, 40, 170, 9, 64)
    prompts = [random.integers(0, config.vocab_size, size).tolist() for size in lengths]
    tokens = 4 if place.rehearsal else 48
    served: dict[str, list[list[int]]] = {}
    for name, most, ahead in (("plain", 0, False), ("ahead", 0, True), ("graphs", 8, False), ("both", 8, True)):
        runner = make_runner(model, place, 2000, most=most)
        executor = Executor(runner, max_running=8, max_context=512, ahead=ahead)
        served[name] = Loop(executor, max_running=8, chunk_tokens=128).serve(prompts, tokens, temperature=0.7)
    same = {name: _same_share(served["plain"], other) for name, other in served.items()}
    # Graphs pad batches, so their matrix products round differently: a token may change, and with it all after it.
    return {"same_tokens": same, "ok": same["ahead"] == 1.0 and same["graphs"] == same["both"] and same["both"] > 0.3}


def _same_share(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of tokens before the first difference."""
    kept = total = 0
    for a, b in zip(one, other, strict=True):
        differing = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        kept += differing[0] if differing else len(a)
        total += len(a)
    return kept / total


def graph_errors(place: Place) -> Figures:
    """The largest difference between hidden states with a graph and without, over decodes."""
    if place.flashinfer is None:
        raise Skipped("FlashInfer is not installed, and only its attention lives in graphs")
    model = random_model(TINY if place.rehearsal else SMALL, place)
    most, known = (3, 10) if place.rehearsal else (8, 200)
    eager, graphed = make_runner(model, place, 4000), make_runner(model, place, 4000, most=most)
    worst = 0.0
    with torch.inference_mode():
        for entries in range(1, most + 1):
            for runner in (eager, graphed):
                prefill(runner, entries, known)
            step = decode_step(entries, known, model.config.vocab_size)
            worst = max(worst, float((eager.forward(step).float() - graphed.forward(step).float()).abs().max()))
    return {"max_error": worst, "ok": worst < 0.06}


# --- how fast it is ---------------------------------------------------------------------------------------------------


def shared_prefix_attention(place: Place) -> Figures:
    """Attention of 64 decodes over a shared prefix of 8,000 tokens and 100 of their own: grouped and not."""
    if place.flashinfer is None:
        raise Skipped("FlashInfer is not installed")
    entries, prefix, own = (4, 200, 3) if place.rehearsal else (64, 8000, 100)
    shape = TINY if place.rehearsal else LLAMA_8B
    one = ModelConfig(**{**shape.__dict__, "layers": 1})
    pool = KVPool(one, prefix + entries * own, place.dtype, place.device)
    everywhere = torch.arange(pool.slots, device=place.device)
    pool.store(0, everywhere, *torch.randn(2, pool.slots, one.kv_heads, one.head_dim, device=place.device))
    slots = np.arange(pool.slots, dtype=np.int32)
    lists = [np.concatenate((slots[:prefix], slots[prefix + i * own :][:own])) for i in range(entries)]
    q = torch.randn(entries, one.heads, one.head_dim, device=place.device).to(place.dtype)
    attention = FlashInferAttention(one, pool, place.dtype)
    found = {}
    for name, groups in (("alone", []), ("grouped", [SharedPrefix(range(entries), prefix)])):
        counts = bounds([len(each) for each in lists])
        with patch.object(paging, "MIN_SAVED", 0):
            attention.plan(AttentionBatch(bounds([1] * entries), counts, np.concatenate(lists), groups))
        found[name] = seconds_of(place, lambda: attention.run(0, q), 200)
    ratio = found["alone"] / found["grouped"]
    return {
        "alone_us": found["alone"] * 1e6,
        "grouped_us": found["grouped"] * 1e6,
        "ratio": ratio,
        "ok": place.rehearsal or ratio >= 3,
    }


def roofline_and_workloads(place: Place, ceiling: Figures, scale: float) -> Figures:
    """The 8B-shaped model: decode beside the copy rate, prefill beside the matrix rate, and W3 to W5."""
    config = TINY if place.rehearsal else LLAMA_8B
    context = 40 if place.rehearsal else 1000
    model = random_model(config, place)
    slots = 3000 if place.rehearsal else 60_000
    most = 4 if place.rehearsal else 64
    began = time.perf_counter()
    runner = make_runner(model, place, slots, most=most)
    captured = time.perf_counter() - began
    matrices = runner.weight_bytes - model.embed.numel() * model.embed.element_size()  # a row of it is read
    table = []
    with torch.inference_mode():
        for entries in (1, 2) if place.rehearsal else (1, 8, 32, 64):
            if entries * context > slots:
                continue
            prefill(runner, entries, context - 1)
            step = decode_step(entries, context - 1, config.vocab_size)
            seconds = seconds_of(place, lambda step=step: runner.logits(runner.forward(step)), 50)
            per_token = 2 * config.layers * config.kv_heads * config.head_dim * place.dtype.itemsize
            rate = (matrices + entries * context * per_token) / seconds / 1e9
            share = rate / ceiling["copy_gbs"]
            table.append({"decode": entries, "ms": seconds * 1e3, "gbs": rate, "of_copy": share})
        for tokens in (32,) if place.rehearsal else (512, 2048, 8192):
            seconds = seconds_of(place, lambda tokens=tokens: prefill(runner, 1, tokens), 8)
            flops = 2 * (matrices / place.dtype.itemsize - config.vocab_size * config.hidden_size) * tokens
            flops += 2 * config.layers * config.heads * config.head_dim * tokens**2  # causal: half of 4 n^2
            rate = flops / seconds / 1e12
            share = rate / ceiling["matmul_tflops"]
            table.append({"prefill": tokens, "ms": seconds * 1e3, "tflops": rate, "of_matmul": share})
    executor = Executor(runner, max_running=most, max_context=config.max_context, ahead=True)
    loop = Loop(executor, max_running=most, chunk_tokens=64 if place.rehearsal else 2048)
    random = np.random.default_rng(3)
    loop.serve([[1, 2, 3]], 4)
    served = {
        name: loop.measured(make(random, config.vocab_size, scale))
        for name, make in (("W3", w3_batch_unique), ("W4", w4_few_shot), ("W5", w5_tree))
        if name == "W4" or not place.rehearsal
    }
    alone = next(row["of_copy"] for row in table if row.get("decode") == 1)
    best_prefill = max(row["of_matmul"] for row in table if "prefill" in row)
    return {
        "backend": runner.backend,
        "set_up_seconds": captured,
        "roofline": table,
        "workloads": served,
        "ok": place.rehearsal or (alone >= 0.75 and best_prefill >= 0.6),
    }


def prefill(runner: TorchRunner, entries: int, tokens: int) -> torch.Tensor:
    """Computes the first `tokens` positions of so many sequences, each in the next slots; the last's hidden state."""
    hidden = torch.empty(0)
    for i in range(entries):
        hidden = runner.forward(prefill_step(tokens, runner.config.vocab_size, i))
    return hidden


def prefill_step(tokens: int, vocab: int, number: int = 0) -> ModelStep:
    """A prompt of so many tokens, in slots of its own; one more slot is left for what comes next."""
    slots = np.arange(number * (tokens + 1), (number + 1) * (tokens + 1), dtype=np.int32)[:tokens]
    ids = ((np.arange(tokens) * 7 + number) % vocab).astype(np.int32)
    end, last = np.array([0, tokens], np.int32), np.array([tokens - 1], np.int32)
    return ModelStep(ids, np.arange(tokens, dtype=np.int32), slots, end, end, slots, last)


def decode_step(entries: int, known: int, vocab: int) -> ModelStep:
    """The next token of the sequences that `prefill` left."""
    every = np.arange(entries, dtype=np.int32)
    lists = [np.arange(i * (known + 1), (i + 1) * (known + 1), dtype=np.int32) for i in range(entries)]
    return ModelStep(
        token_ids=every % vocab,
        positions=np.full(entries, known, np.int32),
        slots=np.array([one[-1] for one in lists], np.int32),
        qo_indptr=bounds([1] * entries),
        kv_indptr=bounds([known + 1] * entries),
        kv_indices=np.concatenate(lists),
        output_rows=every,
    )
