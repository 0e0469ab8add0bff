"""Checkpoints for the model tests: Hugging Face models, and GGUF files written from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GEMMA_NORMS = {  # Gemma's second norm of that name is another than Llama's
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
HF_TO_GGUF = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
}


def gguf_name(name: str, kind: str) -> str:
    for hf, gguf in (HF_TO_GGUF | (GEMMA_NORMS if "gemma" in kind else {})).items():
        name = name.replace(hf, gguf)
    return name


def pair_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter does for llama: (x0, x1, …, y0, y1, …) of each head to (x0, y0, x1, y1, …)."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(model: Any, path: Path, quantization: str = "F32", drop: tuple[str, ...] = (), **extra: Any) -> Path:
    """A GGUF file of a transformers model; `extra`: more metadata under the architecture's prefix."""
    import gguf

    config = model.config
    kind: str = config.model_type
    kind = {"mistral": "llama", "gemma3_text": "gemma3"}.get(kind, kind)
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    for key, value in extra.items():
        name = f"{kind}.{key.replace('__', '.')}"
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    if config.rope_parameters["rope_type"] == "llama3":
        dim = model.model.layers[0].self_attn.head_dim
        plain = 1.0 / config.rope_parameters["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
        factors = plain / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    for name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        if "gemma" in kind and name.endswith("norm.weight"):
            array = array + 1
        if name in drop or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = pair_rows(array, heads)
        quantizes = quantization not in ("F32", "F16") and array.ndim == 2
        kept = array.astype(np.float16) if quantization == "F16" and array.ndim == 2 else array
        if quantizes:
            number = gguf.GGMLQuantizationType[quantization]
            writer.add_tensor(gguf_name(name, kind), gguf.quants.quantize(array, number), raw_dtype=number)
        else:
            writer.add_tensor(gguf_name(name, kind), np.ascontiguousarray(kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def save_gguf() -> Callable[..., Path]:
    return write_gguf


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Builds a tiny random transformers model of a family, by its name in transformers, with options of its config."""

    def make(family: str, **options: Any) -> Any:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(1)
        sizes = {
            "vocab_size": 160,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.2,
            "eos_token_id": 7,
        }
        config = AutoConfig.for_model(family, **{**sizes, **options})
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("bias", "norm.weight")):  # initialized to 0 and 1, which would hide mistakes
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        return model

    return make
