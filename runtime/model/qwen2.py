"""The Qwen2 family: Llama with biases on q, k and v, and in some checkpoints a sliding window in the upper layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ModelError
from ..fields import Fields
from .config import ModelConfig
from .family import Family, TensorSpec
from .llama import llama_tensors
from .windows import FULL, SLIDING, layer_count, layer_kinds, window_size, windows_of

WINDOW, FULL_LAYERS = 4096, 28  # where config.json has neither `sliding_window` nor `max_window_layers`


def qwen2_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of a Qwen2 checkpoint."""
    yield from llama_tensors(config)
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i in range(config.layers):
        part, attn, gguf = f"layers.{i}.qkv_bias", f"model.layers.{i}.self_attn", f"blk.{i}"
        yield TensorSpec(part, 0, (q_rows,), f"{attn}.q_proj.bias", f"{gguf}.attn_q.bias", config.heads, "heads")
        yield TensorSpec(
            part, q_rows, (kv_rows,), f"{attn}.k_proj.bias", f"{gguf}.attn_k.bias", config.kv_heads, "kv_heads"
        )
        yield TensorSpec(
            part, q_rows + kv_rows, (kv_rows,), f"{attn}.v_proj.bias", f"{gguf}.attn_v.bias", rows="kv_heads"
        )


def _hf_own(fields: Fields) -> dict[str, Any]:
    slides = bool(fields.data.get("use_sliding_window"))
    kinds = layer_kinds(fields)
    if kinds is None and slides:
        first = fields.data.get("max_window_layers", FULL_LAYERS)
        if type(first) is not int or first < 0:
            raise fields.invalid("max_window_layers", "a number of layers is needed")
        kinds = [SLIDING if i >= first else FULL for i in range(layer_count(fields, "num_hidden_layers"))]
    if kinds is None or SLIDING not in kinds:
        return {}
    if not slides:
        raise ModelError(f"{fields.source}: layer_types has {SLIDING!r}, but use_sliding_window is not true")
    return {"windows": windows_of(kinds, window_size(fields, WINDOW))}


QWEN2 = Family(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    tensors=qwen2_tensors,
    hf_required={"hidden_act": "silu", "attention_bias": True, "qkv_bias": True},
    gguf_pairs_rope=False,
    hf_own=_hf_own,
)
