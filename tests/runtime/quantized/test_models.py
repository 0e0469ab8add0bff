"""Whole models whose matrices stay quantized, against transformers and against the dequantized ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulated_kernels
import numpy as np
import pytest
import torch
from emulated_kernels import EMULATED, pack_int4
from packers import FORMATS, write
from torch import Tensor

from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.ranks import ALONE, Ranks
from sapwood.runtime.execution.runner import ModelStep, TorchRunner
from sapwood.runtime.model.layers.linear import RowBlocks
from sapwood.runtime.model.layers.quantized_linear import (
    FEW_ROWS,
    Int4Linear,
)
from sapwood.runtime.model.loading import load_model
from sapwood.runtime.weights.quantized import nibbles
from tests.runtime.quantized.test_linears import DEQUANTIZED, FLOAT8, INT4, Saved, difference

# --- whole models -----------------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """A model as a GPU has it, and the sentences that were said while it was loaded."""

    runner: TorchRunner
    said: list[str]


def kept(path: Path, ranks: Ranks = ALONE, dtype: torch.dtype = torch.bfloat16, kernels: Any = EMULATED) -> Kept:
    said: list[str] = []
    model = load_model(path, dtype, ranks=ranks, kernels=kernels, progress=said.append)
    own = model.shard.config
    pool = KVPool(own, 200, dtype)
    return Kept(TorchRunner(model, pool, TorchAttention(own, pool)), said)


def prompt(tokens: int) -> Tensor:
    """int64 [1, tokens]."""
    return torch.from_numpy(np.random.default_rng(8).integers(0, 96, (1, tokens)))


def logits(runner: TorchRunner, tokens: int) -> Tensor:
    """float32 [tokens, vocab] of a prompt."""
    every = np.arange(tokens, dtype=np.int32)
    ids = prompt(tokens)[0].numpy().astype(np.int32)
    ends = np.array([0, tokens], np.int32)
    with torch.inference_mode():
        return runner.logits(runner.forward(ModelStep(ids, every, every, ends, ends, every, every)))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("name", INT4)
def test_int4_models_are_as_near_to_exact_ones_as_bfloat16_is(saved: Saved, name: str, family: str) -> None:
    path, _ = saved(name, family)
    ours, rounded = kept(path), kept(path, kernels=None)
    exact = kept(path, kernels=None, dtype=torch.float32)
    for tokens in (60, FEW_ROWS + 22):
        expected = logits(exact.runner, tokens)
        own, others = (difference(logits(each.runner, tokens), expected) for each in (ours, rounded))
        assert own < 2 * others < 0.1
    assert "int4" in ours.runner.dtype
    assert ours.runner.weight_bytes < 0.6 * rounded.runner.weight_bytes
    assert ours.said[0].endswith("stay quantized")


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_models_compute_what_transformers_does_with_rounded_inputs(saved: Saved, name: str) -> None:
    path, model = saved(name)

    def rounded(_: Any, given: tuple[Tensor]) -> Tensor:
        scale = given[0].abs().amax(-1, keepdim=True) / 448
        return (given[0] / scale).to(torch.float8_e4m3fn).float() * scale

    ours, single = kept(path), kept(path, dtype=torch.float32)
    layers = [module for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    assert len(layers) == 14
    for tokens in (60, FEW_ROWS + 22):
        found = logits(ours.runner, tokens)
        with torch.inference_mode():
            exact = model(prompt(tokens)).logits[0]
            hooks = [layer.register_forward_pre_hook(rounded) for layer in layers]
            expected = model(prompt(tokens)).logits[0]
            for hook in hooks:
                hook.remove()
        assert difference(logits(single.runner, tokens), expected) < 1e-4
        assert difference(expected, exact) > 0.05
        assert difference(found, exact) < 0.3  # in bfloat16 other inputs are rounded up
    assert ours.runner.dtype == "bfloat16+float8_e4m3fn"
    assert ours.runner.weight_bytes < 0.7 * kept(path, kernels=None).runner.weight_bytes


def test_matrices_of_one_layer_are_fused(saved: Saved) -> None:
    for name in ("gptq desc_act", "awq", "fp8 as transformers"):
        layer: Any = kept(saved(name)[0]).runner.model.layers[0]
        assert not isinstance(layer.attention.qkv, RowBlocks)
        assert not isinstance(layer.feed_forward.gate_up, RowBlocks)
    layer = kept(saved("packed in another order")[0]).runner.model.layers[0]
    assert isinstance(layer.attention.qkv, RowBlocks)  # there q has an order of its own


def test_a_quantized_head_and_a_plain_matrix_among_quantized_ones(saved: Saved) -> None:
    model = kept(saved("gptq head too")[0]).runner.model
    assert isinstance(model.head, Int4Linear)
    assert isinstance(model.layers[1].attention.qkv, RowBlocks)
    assert isinstance(model.layers[0].attention.qkv, Int4Linear)


@pytest.mark.parametrize("name", ["awq", "packed with zeros", "gptq without g_idx", "fp8"])
def test_two_ranks_compute_what_one_does(saved: Saved, in_ranks: Callable[..., list[Any]], name: str) -> None:
    path, _ = saved(name)
    alone = logits(kept(path).runner, 40)
    exact = logits(kept(path, kernels=None, dtype=torch.float32).runner, 40)
    found = in_ranks(2, lambda ranks: logits(kept(path, ranks).runner, 40))
    assert difference(found[0], alone) < 2 * difference(alone, exact)
    assert not found[1].numel()


def test_what_cannot_be_divided_is_refused_by_name(saved: Saved, in_ranks: Callable[..., list[Any]]) -> None:
    def refused(path: Path) -> Callable[[Ranks], str]:
        def work(ranks: Ranks) -> str:
            with pytest.raises(UnsupportedModel) as caught:
                kept(path, ranks)
            return str(caught.value)

        return work

    for sentence in in_ranks(2, refused(saved("gptq desc_act")[0])):
        assert "'model.layers.0.self_attn.o_proj.weight': torch's int4 kernel has no matrix of 128 by 64" in sentence
        assert "with desc_act cannot be divided among ranks: use tp 1" in sentence
    for sentence in in_ranks(3, refused(saved("fp8")[0])):  # 256 inner columns in three
        assert "needs multiples of 16" in sentence


def test_eight_bit_blocks_are_dequantized_and_the_log_says_so(saved: Saved) -> None:
    for name in DEQUANTIZED:
        path, _ = saved(name)
        said: list[str] = []
        model = load_model(path, torch.bfloat16, torch.device("meta"), progress=said.append)
        assert model.weight_types == "bfloat16"
        assert "are dequantized to bfloat16, as there is no kernel for them: 0.00 GiB in memory" in said[0]


def test_the_emulation_is_no_identity() -> None:
    """Packing moves values about: the emulated kernels could not do without undoing it."""
    values = torch.arange(8 * 32).view(8, 32).remainder(16).to(torch.uint8)
    packed = pack_int4((values[:, ::2] << 4) | values[:, 1::2], 2)
    assert np.array_equal(emulated_kernels.unpack_int4(packed), values.numpy())
    assert nibbles(packed).flatten().tolist() != values.flatten().tolist()


def test_write_gives_each_format_its_own_weights(make_model: Callable[..., Any], tmp_path: Path) -> None:
    """What is compared with is not the model before it was quantized."""
    model = make_model()
    before = model.model.layers[0].mlp.up_proj.weight.clone()
    write(model, tmp_path / "model", FORMATS["awq"])
    assert not torch.allclose(model.model.layers[0].mlp.up_proj.weight, before, atol=0.01)
