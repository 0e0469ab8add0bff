"""Checkpoints of both kinds load into the kernels as torch's decoder loads them, whatever types their tensors have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from batches import Part, Tokens, step_of
from safetensors.torch import save_file
from stored_rows import stored_rows
from torch_steps import TorchSteps

from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.decoder import NativeDecoder
from sapwood.runtime.kernels.loading import load_weights
from sapwood.runtime.model.config import ModelConfig, Rope
from sapwood.runtime.model.families.registry import family_of
from sapwood.runtime.model.loading import load_model

WIDTH, INNER, VOCAB, CONTEXT = 256, 512, 96, 128


def config_of(architecture: str) -> ModelConfig:
    return ModelConfig(
        architecture, VOCAB, WIDTH, INNER, 2, 4, 2, 64, 1e-5, CONTEXT, Rope(10_000.0), architecture == "llama", ()
    )  # fmt: skip


def hf_directory(architecture: str, dtype: torch.dtype, path: Path) -> Path:
    config = config_of(architecture)
    random = torch.Generator().manual_seed(1)
    tensors = {
        str(spec.hf): (torch.randn(spec.shape, generator=random) * (0.08 if len(spec.shape) == 2 else 0.7)).to(dtype)
        for spec in family_of(architecture).tensors(config)
    }
    save_file(tensors, path / "model.safetensors")
    sizes = {
        "architectures": [family_of(architecture).hf_class], "model_type": architecture, "vocab_size": VOCAB,
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": CONTEXT,
        "rope_theta": 10_000.0, "hidden_act": "silu", "tie_word_embeddings": config.tied_head,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(sizes))
    return path


def gguf_file(types: Callable[[str], str], path: Path) -> Path:
    """A Llama model of random codes, whose matrices have the types that `types` gives by tensor name."""
    config, rng = config_of("llama"), np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    for spec in family_of("llama").tensors(config):
        assert isinstance(spec.gguf, str)
        if len(spec.shape) == 1:
            writer.add_tensor(spec.gguf, rng.normal(1, 0.2, spec.shape).astype(np.float32))
        else:
            name = types(spec.gguf)
            rows = stored_rows(name, spec.shape[0], spec.shape[1], rng)
            writer.add_tensor(spec.gguf, rows, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_same_as_torch(path: Path, library: Library) -> None:
    config, weights = load_weights(path, library, 2)
    decoder = NativeDecoder(config, weights, KVPool(config, CONTEXT, torch.float32), library, 2)
    rng = np.random.default_rng(2)
    tokens = Tokens(rng.integers(0, VOCAB, 40).astype(np.int32), rng.permutation(CONTEXT)[:40].astype(np.int32))
    step = step_of([Part(tokens, 0, 40)])
    logits = decoder.logits(decoder.forward(step))
    _, expected = TorchSteps(load_model(path, torch.float32), CONTEXT).forward(step)
    scale = float(expected.abs().max())
    torch.testing.assert_close(logits / scale, expected / scale, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_safetensors_models(architecture: str, dtype: torch.dtype, library: Library, tmp_path: Path) -> None:
    assert_same_as_torch(hf_directory(architecture, dtype, tmp_path), library)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q6_K"])
def test_gguf_models_of_one_type(name: str, library: Library, tmp_path: Path) -> None:
    assert_same_as_torch(gguf_file(lambda _: name, tmp_path / "model.gguf"), library)


def test_a_gguf_model_that_mixes_types_as_k_quants_do(library: Library, tmp_path: Path) -> None:
    def mixed(tensor: str) -> str:
        for part, name in {"attn_v": "Q6_K", "ffn_down": "Q5_K", "token_embd": "Q8_0", "ffn_up": "Q5_0"}.items():
            if part in tensor:
                return name
        return "Q4_K"

    assert_same_as_torch(gguf_file(mixed, tmp_path / "model.gguf"), library)


def test_plain_models_can_be_quantized_as_they_load(library: Library, tmp_path: Path) -> None:
    path = hf_directory("llama", torch.bfloat16, tmp_path)
    plain = load_weights(path, library, 1)[1]
    for option, share in (("q8_0", 0.54), ("q4_0", 0.29)):
        weights = load_weights(path, library, 1, quantize=option)[1]
        assert {matrix.type for matrix in weights.matrices()} == {option.upper()}
        small, large = (sum(m.nbytes for m in w.matrices()) for w in (weights, plain))
        assert small < share * large
    with pytest.raises(UnsupportedModel, match="quantize 'q3' is not supported; there are q8_0, q4_0"):
        load_weights(path, library, 1, quantize="q3")
