"""The Qwen3 family: Llama with a norm of every head of q and k, and in some checkpoints windows as in Qwen2."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import ModelConfig
from ..windows import upper_windows
from .family import Family, TensorSpec
from .llama import llama_tensors


def head_norms(config: ModelConfig) -> Iterator[TensorSpec]:
    """The norms of q's and k's heads, one of each for a layer."""
    for i in range(config.layers):
        for name in ("q_norm", "k_norm"):
            hf, gguf = f"model.layers.{i}.self_attn.{name}.weight", f"blk.{i}.attn_{name}.weight"
            yield TensorSpec(f"layers.{i}.{name}", 0, (config.head_dim,), hf, gguf)


def qwen3_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of a Qwen3 checkpoint."""
    yield from llama_tensors(config)
    yield from head_norms(config)


QWEN3 = Family(
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    tensors=qwen3_tensors,
    hf_required={"hidden_act": "silu", "attention_bias": False},
    gguf_pairs_rope=False,
    hf_own=upper_windows,
)
