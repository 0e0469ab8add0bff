"""Families with sliding windows, caps and other norms give transformers' logits: in one piece, in chunks, token by
token, and on top of a prefix that another sequence computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.runner import ModelStep, TorchRunner
from sapwood.runtime.model.loading import load_model

SLOTS = 256
LENGTH, SHARED = 100, 60
TOLERANCE = 1e-4
GEMMA2 = {
    "head_dim": 16,
    "sliding_window": 20,
    "query_pre_attn_scalar": 9,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.5,
}
WINDOW_ABOVE = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ROPES: dict[str, Any] = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
LINEAR = ROPES | {"full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}}
GEMMA3: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 20,
    "query_pre_attn_scalar": 9,
    "sliding_window_pattern": 3,
}
PLAIN_SCALE = {"query_pre_attn_scalar": 16}
# The family, its options, and others that each must give other logits: a test that cannot tell them apart is none.
MODELS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "mistral": ("mistral", {"sliding_window": 20}, [{"sliding_window": None}, {"sliding_window": 21}]),
    "qwen2, upper layers": ("qwen2", WINDOW_ABOVE, [{"use_sliding_window": False}, {"max_window_layers": 2}]),
    "qwen2, named layers": ("qwen2", WINDOW_ABOVE | {"layer_types": MIXED}, [{"layer_types": MIXED[1:] + MIXED[:1]}]),
    "gemma2": (
        "gemma2",
        GEMMA2,
        [
            {"sliding_window": 21},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"query_pre_attn_scalar": 16},
            {"layer_types": MIXED[1:] + MIXED[:1]},
        ],
    ),
    "gemma2, all layers": ("gemma2", GEMMA2 | {"layer_types": MIXED[:1] * 3, "tie_word_embeddings": False}, [{}]),
    "gemma2, uncapped": (
        "gemma2",
        GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        [{"attn_logit_softcapping": 1.5}],
    ),
    "qwen3": ("qwen3", {"head_dim": 32}, [{}]),
    "qwen3, upper layers": ("qwen3", WINDOW_ABOVE | {"head_dim": 16}, [{"use_sliding_window": False}]),
    "gemma3": ("gemma3_text", GEMMA3, [{"sliding_window": 21}, {"query_pre_attn_scalar": 16}, {"layer_types": MIXED}]),
    "gemma3, linear": ("gemma3_text", GEMMA3 | {"rope_parameters": LINEAR}, [{"rope_parameters": ROPES}]),
    "gemma3, capped": ("gemma3_text", GEMMA3 | {"final_logit_softcapping": 2.5}, [{"final_logit_softcapping": None}]),
}
Build = Callable[..., Any]


def logits_of(model: Any, ids: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.from_numpy(ids)[None]).logits[0].float()


def runner_of(path: Path, dtype: torch.dtype = torch.float32) -> TorchRunner:
    model = load_model(path, dtype)
    pool = KVPool(model.config, SLOTS, dtype)
    pool.poison(torch.arange(SLOTS))
    return TorchRunner(model, pool, TorchAttention(model.config, pool))


def step_of(*parts: tuple[np.ndarray, np.ndarray, int, int]) -> ModelStep:
    """Computes positions [start, end) of sequences: (token ids, slots, start, end) of each. Every row is wanted."""
    counts = [end - start for _, _, start, end in parts]
    known = [end for _, _, _, end in parts]

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays).astype(np.int32)

    return ModelStep(
        token_ids=joined([ids[start:end] for ids, _, start, end in parts]),
        positions=joined([np.arange(start, end) for _, _, start, end in parts]),
        slots=joined([slots[start:end] for _, slots, start, end in parts]),
        qo_indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        kv_indptr=np.concatenate(([0], np.cumsum(known))).astype(np.int32),
        kv_indices=joined([slots[:end] for _, slots, _, end in parts]),
        output_rows=np.arange(sum(counts), dtype=np.int32),
    )


def logits_in_pieces(runner: TorchRunner, first: np.ndarray, second: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every position of `first`, and of those of `second` behind the SHARED that it has from it.

    `first` is computed in one piece, then token by token, while `second` goes through in chunks.
    """
    order = np.random.default_rng(2).permutation(SLOTS)
    slots = order[:LENGTH]
    others = np.concatenate((slots[:SHARED], order[LENGTH : 2 * LENGTH - SHARED]))
    prefill = LENGTH - 8
    found: list[torch.Tensor] = []
    behind: list[torch.Tensor] = []
    with torch.inference_mode():
        found.append(runner.logits(runner.forward(step_of((first, slots, 0, prefill)))))
        start = SHARED
        for i in range(8):
            chunk = min(1 + i, LENGTH - start)
            at = prefill + i
            both = step_of((second, others, start, start + chunk), (first, slots, at, at + 1))
            logits = runner.logits(runner.forward(both))
            behind.append(logits[:chunk])
            found.append(logits[chunk:])
            start += chunk
    assert start > SHARED + 20  # further than any window reaches back
    return torch.cat(found), torch.cat(behind)


def assert_same(path: Path, model: Any) -> None:
    random = np.random.default_rng(1)
    first = random.integers(0, 160, LENGTH)
    second = np.concatenate((first[:SHARED], random.integers(0, 160, LENGTH - SHARED)))
    found, behind = logits_in_pieces(runner_of(path), first, second)
    torch.testing.assert_close(found, logits_of(model, first), atol=TOLERANCE, rtol=0)
    expected = logits_of(model, second)[SHARED : SHARED + len(behind)]
    torch.testing.assert_close(behind, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(build: Build, tmp_path: Path, one_thread: None, name: str) -> None:
    family, options, others = MODELS[name]
    model = build(family, **options)
    model.save_pretrained(tmp_path)
    assert_same(tmp_path, model)
    ids = np.random.default_rng(1).integers(0, 160, LENGTH)
    for other in others:
        if other:
            differences = (logits_of(build(family, **options | other), ids) - logits_of(model, ids)).abs()
            assert differences.max() > 100 * TOLERANCE, other


def test_a_gguf_file_of_gemma2_has_its_norms_and_scale(
    build: Build, save_gguf: Callable[..., Path], tmp_path: Path, one_thread: None
) -> None:
    """GGUF adds one to the norms, and does not say how queries are scaled: by the head dimension, in small models."""
    model = build("gemma2", **GEMMA2 | PLAIN_SCALE)
    keys = {"attention__sliding_window": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5}
    path = save_gguf(model, tmp_path / "model.gguf", **keys)
    assert_same(path, model)
    model.save_pretrained(tmp_path)
    for ours, theirs in zip(
        load_model(path, torch.float32).parameters(), load_model(tmp_path, torch.float32).parameters()
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_a_gguf_file_of_gemma3_has_the_rotations_that_it_does_not_say(
    build: Build, save_gguf: Callable[..., Path], tmp_path: Path, one_thread: None
) -> None:
    ropes = ROPES | {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    options = GEMMA3 | PLAIN_SCALE | {"sliding_window_pattern": 6, "num_hidden_layers": 7, "rope_parameters": ropes}
    model = build("gemma3_text", **options)
    model.config.rope_parameters = ropes["full_attention"]  # where the writer looks for it
    assert_same(save_gguf(model, tmp_path / "model.gguf", attention__sliding_window=20), model)


def test_gemma2_rounds_where_it_does_in_transformers(build: Build, tmp_path: Path) -> None:
    """In bfloat16: the scale of the embeddings, and norms once, at their end."""
    model = build("gemma2", hidden_size=76, **GEMMA2).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ours = load_model(tmp_path, torch.bfloat16)
    ids = torch.arange(160)
    embedded = model.model.embed_tokens(ids)
    assert torch.equal(ours.embedded(ids), embedded)
    for norm, name in zip(ours.layers[1].norms(), ("input_layernorm", "pre_feedforward_layernorm"), strict=False):
        assert torch.equal(norm.apply(embedded), getattr(model.model.layers[1], name)(embedded))
