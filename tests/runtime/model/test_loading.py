"""Every tensor of a checkpoint is accounted for: what is missing, left over, misshapen or damaged is named."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.model.loading import load_model

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def saved(build: Callable[..., Any], tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path)
    return tmp_path


def change(path: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


def test_a_missing_tensor_is_named(saved: Path) -> None:
    with pytest.raises(ModelError, match=f"lacks the tensor '{Q}'"):
        load_model(change(saved, lambda tensors: tensors.pop(Q)), torch.float32)


def test_an_unexpected_tensor_is_named(saved: Path) -> None:
    bias = Q.replace("weight", "bias")
    with pytest.raises(UnsupportedModel, match=f"unexpected tensor '{bias}' \\(1 in all\\)"):
        load_model(change(saved, lambda tensors: tensors.update({bias: torch.zeros(64)})), torch.float32)


def test_a_wrong_shape_is_named_with_both_shapes(saved: Path) -> None:
    with pytest.raises(ModelError, match=rf"'{Q}' has shape \(64, 60\), expected \(64, 64\)"):
        load_model(change(saved, lambda tensors: tensors.update({Q: torch.zeros(64, 60)})), torch.float32)


def test_a_tensor_type_is_named(saved: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{Q}' of model.safetensors has type I64; supported types are F32"):
        load_model(change(saved, lambda tensors: tensors.update({Q: torch.zeros(64, 64).long()})), torch.float32)


def test_redundant_tensors_of_old_exports_are_let_through(build: Callable[..., Any], tmp_path: Path) -> None:
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path)

    def old(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    assert load_model(change(tmp_path, old), torch.float32).config.tied_head


def test_absurd_sizes_in_a_config_cost_nothing(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**15}))
    with pytest.raises(ModelError, match=r"lacks the tensor 'model\.layers\.3\."):
        load_model(saved, torch.float32)
    (saved / "config.json").write_text(json.dumps({**config, "vocab_size": 10**15}))
    with pytest.raises(ModelError, match="expected \\(1000000000000000, 64\\)"):
        load_model(saved, torch.float32)


@pytest.mark.parametrize(
    "data",
    [b"", b"1234", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 2) + b"{}x", struct.pack("<Q", 5) + b"hello"],
)
def test_a_damaged_safetensors_file_is_a_sentence(saved: Path, data: bytes) -> None:
    (saved / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors|lacks the tensor"):
        load_model(saved, torch.float32)


def test_a_truncated_safetensors_file_is_a_sentence(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="the download may be incomplete"):
        load_model(saved, torch.float32)


INDEXES: dict[str, tuple[Any, str]] = {
    "no map": ({}, "cannot read"),
    "a list": ([], "cannot read"),
    "an absent shard": ({"weight_map": {"a": "absent.safetensors"}}, "cannot read .*absent"),
    "a shard elsewhere": ({"weight_map": {"a": "../model.safetensors"}}, "outside its directory"),
    "a number": ({"weight_map": {"a": 3}}, "cannot read"),
    "a disagreement": ({"weight_map": {"a": "model.safetensors"}}, "do not agree on the tensor"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_a_wrong_index_is_a_sentence(saved: Path, case: str) -> None:
    index, sentence = INDEXES[case]
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=sentence):
        load_model(saved, torch.float32)


def test_several_files_without_an_index_are_refused(saved: Path) -> None:
    save_file({"a": torch.zeros(1)}, saved / "more.safetensors")
    with pytest.raises(ModelError, match=r"found: model\.safetensors, more\.safetensors"):
        load_model(saved, torch.float32)


def test_gguf_tensors_are_accounted_for_too(
    build: Callable[..., Any], save_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    path = save_gguf(build("llama"), tmp_path / "m.gguf", drop=("model.layers.2.mlp.up_proj.weight",))
    with pytest.raises(ModelError, match=r"m\.gguf lacks the tensor 'blk\.2\.ffn_up\.weight'"):
        load_model(path, torch.float32)
    qwen2 = build("qwen2")
    qwen2.config.model_type = "llama"
    path = save_gguf(qwen2, tmp_path / "biased.gguf")
    with pytest.raises(UnsupportedModel, match=r"unexpected tensor 'blk\.0\.attn_k\.bias' \(9 in all\)"):
        load_model(path, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_rounded_once_to_the_wanted_dtype(
    build: Callable[..., Any], save_gguf: Callable[..., Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    model = build("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "hf")
    for path in (tmp_path / "hf", save_gguf(model, tmp_path / "m.gguf")):
        loaded = load_model(path, dtype)
        q = model.state_dict()[Q].to(dtype)
        stacked = loaded.layers[1].attention.qkv
        assert isinstance(stacked, torch.Tensor)
        assert torch.equal(stacked[:64], q)
        assert loaded.head is loaded.embed
        assert sum(tensor.numel() for tensor in loaded.parameters()) == model.num_parameters()


def test_a_path_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file or directory"):
        load_model(tmp_path / "absent.gguf", torch.float32)
