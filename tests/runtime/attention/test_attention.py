"""Backends give what plain attention gives, for any mix of entries, and never let another entry's slots in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.attention.base import Attention, AttentionBatch
from sapwood.runtime.attention.torch import GROUP_SLOTS, TorchAttention, _split
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.model.config import ModelConfig, Rope

BACKENDS: dict[str, type[Attention]] = {TorchAttention.name: TorchAttention}
SLOTS = 600
HEAD_DIM = 16


def config(heads: int, kv_heads: int, window: int = 0, scale: float = 0.0, cap: float = 0.0) -> ModelConfig:
    """Two layers, of which the second has the window."""
    return ModelConfig(
        "llama", 10, heads * HEAD_DIM, 8, 2, heads, kv_heads, HEAD_DIM, 1e-5, 4096, Rope(), True, (),
        windows=(0, window) if window else (), score_scale=scale, score_cap=cap,
    )  # fmt: skip


def naive(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0, scale: float = 0.0, cap: float = 0.0
) -> torch.Tensor:
    """One entry, in float64: q [n, heads, dim]; keys, values [m, kv_heads, dim]; the n queries are the last of m."""
    group = q.shape[1] // keys.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    for i in range(q.shape[0]):
        end = keys.shape[0] - q.shape[0] + i + 1
        seen = slice(max(0, end - window) if window else 0, end)
        for head in range(q.shape[1]):
            scores = keys[seen, head // group].double() @ q[i, head].double() * (scale or 1 / math.sqrt(q.shape[2]))
            scores = cap * torch.tanh(scores / cap) if cap else scores
            out[i, head] = scores.softmax(0) @ values[seen, head // group].double()
    return out


def run_case(
    name: str,
    entries: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
    seed: int,
    window: int = 0,
    **scores: float,
) -> None:
    """entries: (queries, keys) of each. Everything outside of the entries' own slots is NaN."""
    torch.manual_seed(seed)
    pool = KVPool(config(heads, kv_heads), SLOTS, dtype)
    pool.poison(torch.arange(SLOTS))
    order = np.random.default_rng(seed).permutation(SLOTS).astype(np.int32)
    bounds = np.concatenate(([0], np.cumsum([keys for _, keys in entries]))).astype(np.int32)
    indices = order[: bounds[-1]]
    used = torch.from_numpy(indices.astype(np.int64))
    shape = (len(used), kv_heads, HEAD_DIM)
    for layer in range(2):
        pool.store(layer, used, torch.randn(shape), torch.randn(shape))
    q_bounds = np.concatenate(([0], np.cumsum([queries for queries, _ in entries]))).astype(np.int32)
    q = torch.randn(int(q_bounds[-1]), heads, HEAD_DIM, dtype=dtype)
    attention: Attention = BACKENDS[name](config(heads, kv_heads, window, **scores), pool)
    attention.plan(AttentionBatch(q_bounds, bounds, indices))
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for layer in range(2):
        out = attention.run(layer, q)
        assert out.shape == q.shape
        assert out.dtype == dtype
        keys, values = pool.layer(layer)
        for b in range(len(entries)):
            slots, rows = used[bounds[b] : bounds[b + 1]], slice(q_bounds[b], q_bounds[b + 1])
            expected = naive(q[rows], keys[slots], values[slots], window if layer else 0, **scores)
            torch.testing.assert_close(out[rows].double(), expected, atol=tolerance, rtol=tolerance)


entry = st.tuples(st.integers(1, 12), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    entries=st.lists(entry, min_size=1, max_size=8),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (3, 1)]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_entries(name: str, entries: list[tuple[int, int]], heads: tuple[int, int], seed: int) -> None:
    run_case(name, entries, *heads, torch.float32, seed)


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(entry, min_size=1, max_size=8),
    window=st.sampled_from([0, 1, 2, 5, 12, 40]),
    scale=st.sampled_from([0.0, 0.7]),
    cap=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 1000),
)
def test_windows_caps_and_scales_of_any_mix(
    name: str, entries: list[tuple[int, int]], window: int, scale: float, cap: float, seed: int
) -> None:
    run_case(name, entries, 6, 2, torch.float32, seed, window, scale=scale, cap=cap)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "entries",
    [
        [(1, keys) for keys in (1, 1, 2, 3, 50, 51, 52, 300)],
        [(64, 64), (1, 200), (30, 130)],
        [(1, 1)],
        [(2, 2), (2, 90), (3, 4), (1, 7), (1, 8)],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 30])
def test_decodes_chunks_and_prefills_together(
    name: str, entries: list[tuple[int, int]], dtype: torch.dtype, window: int
) -> None:
    run_case(name, entries, 6, 2, dtype, 0, window, cap=2.0 if window else 0.0)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_entry_may_attend_to_the_slots_of_another(name: str) -> None:
    torch.manual_seed(0)
    shape = config(2, 1)
    pool = KVPool(shape, 20, torch.float32)
    pool.store(0, torch.arange(20), torch.randn(20, 1, HEAD_DIM), torch.randn(20, 1, HEAD_DIM))
    q = torch.randn(4, 2, HEAD_DIM)
    first, second = [3, 9, 4, 7], [3, 9, 4, 11]
    attention = BACKENDS[name](shape, pool)
    bounds = np.array([0, 4, 8], np.int32)
    attention.plan(AttentionBatch(np.array([0, 3, 4], np.int32), bounds, np.array(first + second, np.int32)))
    out = attention.run(0, q)
    keys, values = pool.layer(0)
    torch.testing.assert_close(out[:3].double(), naive(q[:3], keys[first], values[first]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[3:].double(), naive(q[3:], keys[second], values[second]), atol=1e-5, rtol=1e-5)


def test_a_window_that_holds_every_sequence_is_none() -> None:
    shape = config(2, 1, window=100)
    assert shape.within(0).windows == shape.within(101).windows == (0, 100)
    assert shape.within(100).windows == ()
    assert shape.within(100).max_context == 4096


@given(
    pairs=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5000)), max_size=70),
)
def test_rectangles_cover_every_entry_once_and_waste_little(pairs: list[tuple[int, int]]) -> None:
    entries = sorted((queries, queries + more) for queries, more in pairs)
    groups = _split([queries for queries, _ in entries], [keys for _, keys in entries])
    assert [i for start, end in groups for i in range(start, end)] == list(range(len(entries)))
    for start, end in groups:
        members = entries[start:end]
        queries, keys = max(member[0] for member in members), max(member[1] for member in members)
        filled = sum(member[0] * member[1] for member in members)
        assert len(members) == 1 or len(members) * queries * keys <= 1.25 * filled + 2048
        assert len(members) == 1 or len(members) * keys <= GROUP_SLOTS
