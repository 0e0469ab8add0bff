"""A family composes its layers: of parts of its own, and of checkpoint tensors that hold several matrices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.kernels.bindings import Library, library_path
from sapwood.runtime.kernels.loading import load_weights
from sapwood.runtime.kernels.stored import stored_matrix
from sapwood.runtime.model.config import ModelConfig, Rope
from sapwood.runtime.model.families import registry
from sapwood.runtime.model.families.llama import LLAMA
from sapwood.runtime.model.families.registry import FAMILIES
from sapwood.runtime.model.layers.arithmetic import Arithmetic
from sapwood.runtime.model.layers.feed_forward import FeedForward, GatedMLP
from sapwood.runtime.model.layers.linear import Matrix
from sapwood.runtime.model.layers.parameters import LayerParameters
from sapwood.runtime.model.loading import load_model
from sapwood.runtime.model.parts import GATED_MLP, SELF_ATTENTION
from sapwood.runtime.model.tensors import LayerPart, RowsOf, TensorSpec
from sapwood.runtime.wanted import Wanted
from sapwood.runtime.weights.loading import open_checkpoint
from tests.runtime.executors import executor_of

Build = Callable[..., Any]
InRanks = Callable[[int, Callable[[Any], Any]], list[Any]]
IDS = np.random.default_rng(5).integers(0, 97, 60).tolist()


def one_of(specs: Iterator[TensorSpec], name: Callable[[TensorSpec], str], kind: str) -> Iterator[TensorSpec]:
    """The specs as rows of one tensor each, fused below one another or, where they are alike, stacked."""
    groups: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        groups.setdefault(name(spec), []).append(spec)
    for tensor, group in groups.items():
        rows, columns = sum(spec.shape[0] for spec in group), group[0].shape[1]
        shape = (rows, columns) if kind == "fused" else (len(group), rows // len(group), columns)
        start = 0
        for spec in group:
            yield replace(spec, hf=RowsOf(tensor, shape, start))
            start += spec.shape[0]


def fused_attention(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    yield from one_of(SELF_ATTENTION.tensors(config, i), lambda spec: f"{spec.part}.weight", "fused")


def stacked_mlp(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    yield from one_of(GATED_MLP.tensors(config, i), lambda spec: f"{spec.part}.weight", "stacked")


@dataclass(frozen=True)
class Halved(FeedForward):
    """The mean of two: a feed-forward part of another kind."""

    both: list[GatedMLP]
    weight: Tensor

    def forward(self, x: Tensor, arithmetic: Arithmetic) -> Tensor:
        first, second = (one.forward(x, arithmetic) for one in self.both)
        return (first + second) * self.weight

    def matrices(self) -> list[Matrix]:
        return [matrix for one in self.both for matrix in one.matrices()]

    def vectors(self) -> list[Tensor]:
        return [self.weight]


def two_tensors(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    """Both have the llama's matrices; their weights, one for each column, are the family's own."""
    for n in range(2):
        for spec in GATED_MLP.tensors(config, i):
            part = spec.part.replace(f"layers.{i}.", f"layers.{i}.both.{n}.")
            yield replace(spec, part=part)
    name = f"model.layers.{i}.mlp.weights"
    yield TensorSpec(f"layers.{i}.weight", (config.hidden_size,), name, name)


def build_two(weights: LayerParameters, config: ModelConfig) -> FeedForward:
    assert config.own == "of this family"
    weight = weights.vector("weight")
    assert weight is not None
    both = [GatedMLP(weights.matrix(f"both.{n}.gate_up"), weights.matrix(f"both.{n}.down")) for n in range(2)]
    return Halved(both, weight)


FUSED = replace(
    LLAMA,
    name="fused",
    attention=replace(SELF_ATTENTION, tensors=fused_attention),
    feed_forward=replace(GATED_MLP, tensors=stacked_mlp),
)
TWO = replace(
    LLAMA,
    name="two",
    feed_forward=LayerPart(two_tensors, build_two),
    hf_own=lambda fields: {"own": "of this family"},
)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FAMILIES, "fused", FUSED)
    monkeypatch.setitem(registry.FAMILIES, "two", TWO)


@pytest.fixture
def llama(build: Build, tmp_path: Path) -> Path:
    build("llama", vocab_size=97).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def fused(llama: Path, tmp_path: Path) -> Path:
    """The llama's directory, with q, k and v in one tensor, and gate and up in a stack; down is a stack of one."""

    def change(tensors: dict[str, Tensor]) -> None:
        for i in range(3):
            attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            qkv, gate_up = (
                [tensors.pop(f"{module}.{name}_proj.weight") for name in names]
                for module, names in ((attn, "qkv"), (mlp, ("gate", "up")))
            )
            tensors[f"layers.{i}.qkv.weight"] = torch.cat(qkv)
            tensors[f"layers.{i}.out.weight"] = tensors.pop(f"{attn}.o_proj.weight")
            tensors[f"layers.{i}.gate_up.weight"] = torch.stack(gate_up)
            tensors[f"layers.{i}.down.weight"] = tensors.pop(f"{mlp}.down_proj.weight").unsqueeze(0)

    return changed(llama, tmp_path / "fused", "fused", change)


def changed(source: Path, path: Path, model_type: str, change: Callable[[dict[str, Tensor]], None]) -> Path:
    path.mkdir()
    config = json.loads((source / "config.json").read_text()) | {"model_type": model_type}
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


def same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_fused_and_stacked_tensors_become_the_same_model(llama: Path, fused: Path, in_ranks: InRanks) -> None:
    same(load_model(fused, torch.float32), load_model(llama, torch.float32))
    for size in (2, 3, 4):

        def both(ranks: Any) -> None:
            same(load_model(fused, torch.float32, ranks=ranks), load_model(llama, torch.float32, ranks=ranks))

        in_ranks(size, both)


@pytest.mark.parametrize("quantize", ["", "q8_0"])
def test_the_kernels_read_rows_of_a_tensor_too(llama: Path, fused: Path, quantize: str) -> None:
    library = Library(library_path())
    (_, ours), (_, theirs) = (load_weights(path, library, 1, quantize) for path in (fused, llama))
    for one, other in zip(ours.matrices(), theirs.matrices(), strict=True):
        assert (one.type, one.n, one.k) == (other.type, other.n, other.k)
        assert np.array_equal(one.data, other.data)


def test_a_fused_tensor_is_checked_as_a_whole(fused: Path, tmp_path: Path) -> None:
    name = "layers.1.qkv.weight"

    def without(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    with pytest.raises(ModelError, match=f"lacks the tensor '{name}'"):
        load_model(changed(fused, tmp_path / "without", "fused", without), torch.float32)

    def short(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name][:-1].contiguous()

    with pytest.raises(ModelError, match=rf"'{name}' has shape \(127, 64\), expected \(128, 64\)"):
        load_model(changed(fused, tmp_path / "short", "fused", short), torch.float32)


@pytest.mark.parametrize("drive", ["torch"], indirect=True)
def test_a_feed_forward_part_of_a_family_alone(
    llama: Path, drive: Callable[..., Any], in_ranks: InRanks, tmp_path: Path
) -> None:
    """Twice the same, each with half of the weight, is the llama's own."""

    def change(tensors: dict[str, Tensor]) -> None:
        for i in range(3):
            tensors[f"model.layers.{i}.mlp.weights"] = torch.full((64,), 0.5)

    path = changed(llama, tmp_path / "two", "two", change)

    def scores(source: Path, **options: Any) -> np.ndarray:
        driver = drive(source, kv_tokens=128, **options)
        driver.open(0, IDS, wanted=Wanted("logprobs", 1))
        return np.array([value for run in driver.prefill(0, IDS).scored for value in run.logprobs])

    expected = scores(llama)
    np.testing.assert_array_equal(scores(path), expected)
    for size in (2, 3):
        found = in_ranks(size, lambda ranks: scores(path, ranks=ranks))[0]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_kernels_refuse_a_part_that_they_do_not_have(llama: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for i in range(3):
            tensors[f"model.layers.{i}.mlp.weights"] = torch.full((64,), 0.5)

    path = changed(llama, tmp_path / "two", "two", change)
    sentence = "the kernels have no place for both.0.down, which two models have"
    executor = executor_of(path, max_running=1, kv_tokens=64)
    assert (executor.note, executor.runner.backend) == (sentence, "torch")
    with pytest.raises(UnsupportedModel, match=f"the cpu backend cannot be used: {sentence}"):
        executor_of(path, max_running=1, kv_tokens=64, attention_backend="cpu")


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [range(3, 4), range(5, 8), range(4, 21), range(24)])
@pytest.mark.parametrize("kind", ["safetensors", "F32", "Q8_0"])
def test_rows_are_counted_through_a_stack_of_matrices(tmp_path: Path, kind: str, rows: range) -> None:
    """Three of eight rows each."""
    stack = torch.randn(3, 8, 64)
    path = tmp_path
    if kind == "safetensors":
        save_file({"stack": stack}, path / "model.safetensors")
        (path / "config.json").write_text("{}")
    else:
        path = path / "model.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        quantization = gguf.GGMLQuantizationType[kind]
        writer.add_tensor("stack", gguf.quants.quantize(stack.numpy(), quantization), raw_dtype=quantization)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    checkpoint = open_checkpoint(path)
    assert checkpoint.shape("stack") == (3, 8, 64)
    whole = checkpoint.read("stack").view(24, 64)
    torch.testing.assert_close(whole, stack.view(24, 64), atol=0.0 if kind != "Q8_0" else 0.05, rtol=0)
    out = torch.empty(len(rows), 30)
    checkpoint.read_part("stack", out, rows, range(20, 50))
    assert torch.equal(out, whole[rows.start : rows.stop, 20:50])
    stored = stored_matrix(checkpoint, "stack", rows)
    assert (stored.n, stored.k) == (len(rows), 64)
    if kind != "Q8_0":
        assert np.array_equal(stored.data.view(np.float32).reshape(-1, 64), whole[rows.start : rows.stop].numpy())


# --- every family ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_family_takes_every_row_of_its_tensors_once(name: str, is_gguf: bool) -> None:
    config = ModelConfig(name, 97, 64, 96, 2, 4, 2, 16, 1e-5, 128, Rope(), False, ())
    taken: dict[str, list[int]] = {}
    for spec in FAMILIES[name].tensors(config):
        source = spec.source(is_gguf=is_gguf)
        rows = prod(source.shape) // (spec.shape[-1] if len(spec.shape) > 1 else 1)
        counts = taken.setdefault(source.name, [0] * rows)
        for row in range(source.start, source.start + next(iter(spec.shape))):
            counts[row] += 1
    assert all(set(counts) == {1} for counts in taken.values())
