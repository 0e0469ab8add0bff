"""The FlashInfer backend, as far as it can be proven without a GPU.

A stand-in interprets the plan arrays as FlashInfer documents them and computes plain attention from them; what comes
out must be what the torch backend gives. The calls are bound to FlashInfer's recorded signatures.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fake_flashinfer import RECORD, bound, interpret, merge_state_in_place
from record_flashinfer import read_signatures

from sapwood.runtime.attention import paging
from sapwood.runtime.attention.base import AttentionBatch, SharedPrefix
from sapwood.runtime.attention.flashinfer import FlashInferAttention, why_not
from sapwood.runtime.attention.paging import MIN_SAVED, PagedLevel, one_query_each, paged_plan, shares
from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.model.config import ModelConfig, Rope

SLOTS = 400


def config(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, **scores: Any) -> ModelConfig:
    """Two layers."""
    return ModelConfig(
        "llama", 10, heads * head_dim, 8, 2, heads, kv_heads, head_dim, 1e-5, 4096, Rope(), True, (), **scores
    )


def random_batch(random: np.random.Generator) -> AttentionBatch:
    """Up to 7 entries; of most batches some share prefixes, in up to two groups whose members are anywhere."""
    entries = int(random.integers(1, 8))
    decodes = random.random() < 0.4
    queries = np.ones(entries, np.int64) if decodes else random.integers(1, 9, entries)
    own = queries + random.integers(0, 20, entries)
    slots = random.permutation(SLOTS).astype(np.int32)
    taken = 0
    runs: list[list[np.ndarray]] = [[] for _ in range(entries)]
    shared: list[SharedPrefix] = []
    order = random.permutation(entries).tolist()
    for _ in range(int(random.integers(0, 3))):
        size = int(random.integers(1, 5))
        members, order = order[:size], order[size:]
        if members:
            length = int(random.integers(1, 50))
            for member in members:
                runs[member].append(slots[taken : taken + length])
            shared.append(SharedPrefix(members, length))
            taken += length
    for entry in range(entries):
        runs[entry].append(slots[taken : taken + own[entry]])
        taken += int(own[entry])
    lists = [np.concatenate(run) for run in runs]
    return AttentionBatch(bounds(queries), bounds([len(each) for each in lists]), np.concatenate(lists), shared)


def bounds(counts: np.ndarray | list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def filled_pool(shape: ModelConfig, batch: AttentionBatch, dtype: torch.dtype) -> KVPool:
    """Random in the batch's slots, NaN in all others."""
    pool = KVPool(shape, SLOTS, dtype)
    pool.poison(torch.arange(SLOTS))
    used = torch.from_numpy(np.unique(batch.kv_indices).astype(np.int64))
    for layer in range(2):
        pool.store(layer, used, *torch.randn(2, len(used), shape.kv_heads, shape.head_dim))
    return pool


def through(
    level: PagedLevel, q: torch.Tensor, pool: KVPool, layer: int = 0, *, causal: bool, **scores: float
) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (each.unsqueeze(1) for each in pool.layer(layer))
    arrays = (level.qo_indptr, level.kv_indptr, level.kv_indices, level.last_page_len)
    return interpret(q, (keys, values), *map(torch.from_numpy, arrays), causal=causal, **scores)


def torch_attention(shape: ModelConfig, pool: KVPool, batch: AttentionBatch) -> TorchAttention:
    reference = TorchAttention(shape, pool)
    reference.plan(batch)
    return reference


@pytest.mark.parametrize("batches", [500, pytest.param(3000, marks=pytest.mark.slow)])
def test_the_plan_arrays_mean_plain_attention(one_thread: None, batches: int) -> None:
    """Over many batches; half of them with groups worth a level of their own, most with a second layer that has
    a window, and with scores scaled and capped."""
    random = np.random.default_rng(6)
    torch.manual_seed(6)
    levels, windows = 0, 0
    for number in range(batches):
        window, scale, cap = int(random.integers(0, 30)), *random.permutation([0.0, 0.9, 2.0])[:2].tolist()
        shape = config(
            *[(1, 1), (4, 4), (6, 2), (9, 3)][number % 4],
            head_dim=8,
            windows=(0, window),
            score_scale=scale,
            score_cap=cap,
        )
        scores = {"sm_scale": shape.attention_scale, "logits_soft_cap": cap}
        batch = random_batch(random)
        pool = filled_pool(shape, batch, torch.float32)
        q = torch.randn(int(batch.qo_indptr[-1]), shape.heads, shape.head_dim)
        reference = torch_attention(shape, pool, batch)
        whole = paged_plan(replace(batch, shared=())).own
        out, _ = through(whole, q, pool, 1, causal=True, window_left=window - 1, **scores)
        torch.testing.assert_close(out, reference.run(1, q), atol=1e-5, rtol=1e-5)
        if number % 10 == 0:
            windows += not torch.allclose(out, through(whole, q, pool, 1, causal=True, **scores)[0], atol=1e-3)
        with patch.object(paging, "MIN_SAVED", 0):
            plan = paged_plan(batch)
        rows = torch.arange(len(q)) if plan.rows is None else torch.from_numpy(plan.rows)
        assert sorted(rows.tolist()) == list(range(len(q)))
        out, lse = through(plan.own, q[rows], pool, causal=True, **scores)
        if plan.shared is not None:
            levels += 1
            many = int(plan.shared.qo_indptr[-1])
            shared_out, shared_lse = through(plan.shared, q[rows][:many], pool, causal=False, **scores)
            merge_state_in_place(out[:many], lse[:many], shared_out, shared_lse)
        torch.testing.assert_close(out, reference.run(0, q)[rows], atol=1e-5, rtol=1e-5)
    assert levels > batches / 3
    assert windows > batches / 30


SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a window above": {"windows": (0, 7), "score_cap": 1.5, "score_scale": 0.4},
    "a window below": {"windows": (9, 0)},
    "one window": {"windows": (12, 12), "score_cap": 2.0},
    "two windows": {"windows": (5, 30)},
}


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("min_saved", [1, MIN_SAVED])
@pytest.mark.parametrize("scores", SCORES)
def test_the_backend_gives_what_torch_gives(
    fake_flashinfer: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    kv_dtype: torch.dtype,
    min_saved: int,
    scores: str,
    one_thread: None,
) -> None:
    monkeypatch.setattr(paging, "MIN_SAVED", min_saved)
    random = np.random.default_rng(7)
    torch.manual_seed(7)
    shape = config(**SCORES[scores])
    attention = FlashInferAttention(shape, KVPool(shape, 1, kv_dtype), torch.bfloat16)
    for _ in range(20):
        batch = random_batch(random)
        attention.pool = pool = filled_pool(shape, batch, kv_dtype)
        q = torch.randn(int(batch.qo_indptr[-1]), shape.heads, shape.head_dim, dtype=torch.bfloat16)
        same = KVPool(shape, SLOTS, torch.bfloat16)
        for layer in range(2):
            same.store(layer, torch.arange(SLOTS), *(each[:SLOTS].to(torch.bfloat16) for each in pool.layer(layer)))
        reference = torch_attention(shape, same, batch)
        attention.plan(batch)
        for layer in range(2):
            torch.testing.assert_close(attention.run(layer, q), reference.run(layer, q), atol=3e-2, rtol=3e-2)


def test_only_layers_that_see_all_read_what_is_shared(
    fake_flashinfer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MIN_SAVED", 1)
    slots = np.arange(20, dtype=np.int32)
    batch = AttentionBatch(bounds([1, 1]), bounds([20, 20]), np.concatenate((slots, slots)), [SharedPrefix([0, 1], 15)])
    for windows, shares_prefix in (((), True), ((0, 4), True), ((4, 4), False)):
        shape = config(windows=windows)
        attention = FlashInferAttention(shape, filled_pool(shape, batch, torch.float16), torch.float16)
        assert attention.shares(batch) is shares_prefix
        attention.plan(batch)
        planned = {window: wrappers.current.planned for window, wrappers in attention._wrappers.items()}
        assert {window: given["window_left"] for window, given in planned.items()} == {
            window: window - 1 for window in set(windows) or {0}
        }
        for window, given in planned.items():
            assert given["arrays"][1].diff().tolist() == ([20, 20] if window else [5, 5])


def test_the_invariant_form_has_a_request_for_every_query(fake_flashinfer: ModuleType, one_thread: None) -> None:
    shape = config(windows=(0, 6))
    random = np.random.default_rng(9)
    for _ in range(20):
        batch = random_batch(random)
        single = one_query_each(batch)
        queries = int(batch.qo_indptr[-1])
        assert single.qo_indptr.tolist() == list(range(queries + 1))
        pool = filled_pool(shape, batch, torch.float16)
        q = torch.randn(queries, shape.heads, shape.head_dim, dtype=torch.float16)
        reference = torch_attention(shape, pool, batch)
        attention = FlashInferAttention(shape, pool, torch.float16, invariant=True)
        attention.plan(batch)
        for layer, window in enumerate((0, 6)):
            assert attention._wrappers[window].current.planned["disable_split_kv"] is True
            torch.testing.assert_close(attention.run(layer, q), reference.run(layer, q), atol=1e-2, rtol=1e-2)


def test_a_shared_run_is_read_once_for_its_group() -> None:
    slots = np.arange(3, dtype=np.int32)
    many = [np.concatenate((np.arange(10_000, dtype=np.int32), slots + 10_000 + 3 * i)) for i in range(4)]
    batch = AttentionBatch(
        bounds([1, 1, 1, 1]),
        bounds([len(each) for each in many]),
        np.concatenate(many),
        [SharedPrefix([1, 3, 0], 10_000)],
    )
    plan = paged_plan(batch)
    assert plan.shared is not None
    assert plan.shared.kv_indices.tolist() == list(range(10_000))
    assert plan.shared.qo_indptr.tolist() == [0, 3]
    assert plan.rows is not None
    assert plan.rows.tolist() == [1, 3, 0, 2]
    assert np.diff(plan.own.kv_indptr).tolist() == [3, 3, 3, 10_003]
    assert len(plan.own.kv_indices) == 9 + 10_003


def test_a_level_of_its_own_must_be_worth_its_launches() -> None:
    def of(length: int) -> AttentionBatch:
        return AttentionBatch(bounds([1]), bounds([1]), np.zeros(1, np.int32), [SharedPrefix([0, 1, 2], length)])

    assert shares(of(MIN_SAVED // 2))
    assert not shares(of(MIN_SAVED // 2 - 1))
    assert not shares(AttentionBatch(bounds([1]), bounds([1]), np.zeros(1, np.int32)))


def test_a_fixed_plan_lives_in_buffers_that_stay(fake_flashinfer: ModuleType, one_thread: None) -> None:
    """What a CUDA graph needs: the same wrapper and the same addresses for every step of so many entries."""
    shape = config(windows=(0, 6), score_cap=2.0)
    random = np.random.default_rng(8)
    slots = random.permutation(SLOTS).astype(np.int32)
    batches = [AttentionBatch(bounds([1, 1]), bounds(counts), slots[: sum(counts)]) for counts in ([5, 90], [31, 2])]
    pool = filled_pool(shape, batches[0], torch.float16)
    attention = FlashInferAttention(shape, pool, torch.float16)
    attention.reserve([2, 4], 100)
    wrappers = []
    for batch in batches:
        attention.plan_fixed(batch)
        q = torch.randn(2, shape.heads, shape.head_dim, dtype=torch.float16)
        reference = torch_attention(shape, pool, batch)
        for layer in range(2):
            torch.testing.assert_close(attention.run(layer, q), reference.run(layer, q), atol=1e-2, rtol=1e-2)
        wrappers.append([attention._wrappers[window].current for window in (0, 6)])
    assert wrappers[0] == wrappers[1]
    assert wrappers[0][0] is not wrappers[0][1]
    assert wrappers[0][0].fixed[1] is wrappers[0][1].fixed[1]  # one buffer for the slots
    attention.plan(batches[0])
    assert attention._wrappers[0].current is not wrappers[0][0]


@pytest.mark.parametrize(
    ("shape", "dtype", "kv_dtype", "words"),
    [
        (config(), torch.float32, torch.float32, "bfloat16 or float16, not float32"),
        (config(head_dim=80), torch.bfloat16, torch.bfloat16, "head dimensions of 64, 128 and 256, not 80"),
        (config(), torch.bfloat16, torch.float16, "needs a KV pool of bfloat16 or float8_e4m3fn"),
        (config(), torch.bfloat16, torch.float32, "needs a KV pool of bfloat16 or float8_e4m3fn"),
    ],
)
def test_what_flashinfer_does_not_have_is_refused_by_name(
    fake_flashinfer: ModuleType, shape: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype, words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        FlashInferAttention(shape, KVPool(shape, 4, kv_dtype), dtype)


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="FlashInfer is installed here")
def test_where_it_is_missing_the_reason_says_what_to_install() -> None:
    assert "pip install 'sapwood[cuda]'" in why_not(config(), torch.bfloat16)


# --- the calls, against FlashInfer itself ----------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed here")
def test_the_record_is_that_of_the_installed_flashinfer() -> None:
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None
    assert spec.origin is not None
    assert read_signatures(Path(spec.origin).parent.parent)["calls"] == RECORD["calls"]


def test_the_record_reads_methods_overloads_and_handed_on_keywords(tmp_path: Path) -> None:
    folder = tmp_path / "flashinfer"
    folder.mkdir()
    (tmp_path / "flashinfer_python-9.9.dist-info").mkdir()
    decode = "class {0}:\n def __init__(self, a, b=1): ...\n def plan(self, a, *old, **k): ...\n"
    decode += " def _plan_impl(self, a, *, c=2): ...\n def run(self): ...\n def run(self, *args, q, r=1): ...\n"
    (folder / "decode.py").write_text(decode.format("BatchDecodeWithPagedKVCacheWrapper"))
    (folder / "prefill.py").write_text(decode.format("BatchPrefillWithPagedKVCacheWrapper"))
    (folder / "norm").mkdir()
    names = ("rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm", "silu_and_mul")
    names += ("gelu_tanh_and_mul", "apply_rope_with_cos_sin_cache_inplace")
    fused = "".join(f"def {name}(a): ...\n" for name in names)
    for name in ("norm/__init__.py", "activation.py", "rope.py"):
        (folder / name).write_text(fused)
    (folder / "cascade.py").write_text("def merge_state_in_place(v, mask=None): ...\n")
    record = read_signatures(tmp_path)
    assert record["version"] == "9.9"
    assert record["calls"]["BatchDecodeWithPagedKVCacheWrapper.plan"] == "self, a, *, c=..."
    assert record["calls"]["BatchDecodeWithPagedKVCacheWrapper.run"] == "self, *args, q, r=..."
    assert record["calls"]["BatchPrefillWithPagedKVCacheWrapper.__init__"] == "self, a, b=..."


def test_a_call_that_flashinfer_would_refuse_fails() -> None:
    with pytest.raises(TypeError, match="page_sizes"):
        bound("BatchPrefillWithPagedKVCacheWrapper.plan", *range(9), page_sizes=1)
    with pytest.raises(TypeError, match="window"):
        bound("BatchDecodeWithPagedKVCacheWrapper.plan", *range(8), window=1)
    with pytest.raises(TypeError, match="missing"):
        bound("merge_state_in_place", 1, 2, 3)
    with pytest.raises(TypeError, match="positional"):
        bound("BatchDecodeWithPagedKVCacheWrapper.plan", *range(9))
