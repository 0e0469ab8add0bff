"""The Qwen2 family: Llama with biases on q, k and v, and in some checkpoints a sliding window in the upper layers."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import ModelConfig
from ..windows import upper_windows
from .family import Family, TensorSpec
from .llama import llama_tensors


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


QWEN2 = Family(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    tensors=qwen2_tensors,
    hf_required={"hidden_act": "silu", "attention_bias": True, "qkv_bias": True},
    gguf_pairs_rope=False,
    hf_own=upper_windows,
)
