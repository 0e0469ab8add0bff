"""The parts that families compose their layers of. A part that one family alone has is declared in the family's file.

It must not import torch where it is imported: only what builds a part may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .config import ModelConfig
from .tensors import LayerPart, TensorSpec

if TYPE_CHECKING:
    from .layers.feed_forward import FeedForward
    from .layers.norm import RMSNorm
    from .layers.parameters import LayerParameters
    from .layers.self_attention import SelfAttention


# --- attention ------------------------------------------------------------------------------------------------------


def _attention_tensors(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    width, dim = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.heads * dim, config.kv_heads * dim
    qkv, hf, gguf = f"layers.{i}.qkv", f"model.layers.{i}.self_attn", f"blk.{i}"
    yield TensorSpec(qkv, (q_rows, width), f"{hf}.q_proj.weight", f"{gguf}.attn_q.weight", dim, "heads")
    yield TensorSpec(qkv, (kv_rows, width), f"{hf}.k_proj.weight", f"{gguf}.attn_k.weight", dim, "kv_heads")
    yield TensorSpec(qkv, (kv_rows, width), f"{hf}.v_proj.weight", f"{gguf}.attn_v.weight", rows="kv_heads")
    out = f"layers.{i}.out"
    yield TensorSpec(out, (width, q_rows), f"{hf}.o_proj.weight", f"{gguf}.attn_output.weight", columns="heads")


def _biased_attention_tensors(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    yield from _attention_tensors(config, i)
    dim = config.head_dim
    q_rows, kv_rows = config.heads * dim, config.kv_heads * dim
    bias, hf, gguf = f"layers.{i}.qkv_bias", f"model.layers.{i}.self_attn", f"blk.{i}"
    yield TensorSpec(bias, (q_rows,), f"{hf}.q_proj.bias", f"{gguf}.attn_q.bias", dim, "heads")
    yield TensorSpec(bias, (kv_rows,), f"{hf}.k_proj.bias", f"{gguf}.attn_k.bias", dim, "kv_heads")
    yield TensorSpec(bias, (kv_rows,), f"{hf}.v_proj.bias", f"{gguf}.attn_v.bias", rows="kv_heads")


def _normed_attention_tensors(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    yield from _attention_tensors(config, i)
    for name in ("q_norm", "k_norm"):
        hf, gguf = f"model.layers.{i}.self_attn.{name}.weight", f"blk.{i}.attn_{name}.weight"
        yield norm_tensor(config, f"layers.{i}.{name}", hf, gguf, config.head_dim)


def _self_attention(weights: LayerParameters, config: ModelConfig) -> SelfAttention:
    from .layers.self_attention import SelfAttention

    return SelfAttention(
        config.heads,
        config.kv_heads,
        config.head_dim,
        weights.matrix("qkv"),
        weights.matrix("out"),
        weights.vector("qkv_bias"),
        norm_named("q_norm", weights, config),
        norm_named("k_norm", weights, config),
    )


SELF_ATTENTION = LayerPart(_attention_tensors, _self_attention)
BIASED_ATTENTION = LayerPart(_biased_attention_tensors, _self_attention)  # q, k and v have biases
NORMED_ATTENTION = LayerPart(_normed_attention_tensors, _self_attention)  # the heads of q and k have norms


# --- feed-forward ---------------------------------------------------------------------------------------------------


def _mlp_tensors(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    width, inner = config.hidden_size, config.intermediate_size
    gate_up, hf, gguf = f"layers.{i}.gate_up", f"model.layers.{i}.mlp", f"blk.{i}"
    yield TensorSpec(gate_up, (inner, width), f"{hf}.gate_proj.weight", f"{gguf}.ffn_gate.weight", rows="inner")
    yield TensorSpec(gate_up, (inner, width), f"{hf}.up_proj.weight", f"{gguf}.ffn_up.weight", rows="inner")
    down = f"layers.{i}.down"
    yield TensorSpec(down, (width, inner), f"{hf}.down_proj.weight", f"{gguf}.ffn_down.weight", columns="inner")


def _gated_mlp(weights: LayerParameters, config: ModelConfig) -> FeedForward:
    from .layers.feed_forward import GatedMLP

    return GatedMLP(weights.matrix("gate_up"), weights.matrix("down"))


GATED_MLP = LayerPart(_mlp_tensors, _gated_mlp)


# --- norms ----------------------------------------------------------------------------------------------------------


def norm_tensor(config: ModelConfig, part: str, hf: str, gguf: str, width: int = 0) -> TensorSpec:
    """A norm's weight of so many numbers; 0: the model's width."""
    return TensorSpec(part, (width or config.hidden_size,), hf, gguf, gguf_adds_one=config.norms_add_one)


def norm_named(name: str, weights: LayerParameters, config: ModelConfig) -> RMSNorm | None:
    """A layer's norm; None where it has none of that name."""
    from .layers.norm import RMSNorm

    weight = weights.vector(name)
    return None if weight is None else RMSNorm(weight, config.rms_eps, config.norms_add_one)


def pre_norms(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    """A norm before attention and one before feed-forward."""
    hf, gguf = f"model.layers.{i}", f"blk.{i}"
    attn, mlp = f"{hf}.input_layernorm.weight", f"{hf}.post_attention_layernorm.weight"
    yield norm_tensor(config, f"layers.{i}.attn_norm", attn, f"{gguf}.attn_norm.weight")
    yield norm_tensor(config, f"layers.{i}.mlp_norm", mlp, f"{gguf}.ffn_norm.weight")


def pre_and_post_norms(config: ModelConfig, i: int) -> Iterator[TensorSpec]:
    """Norms before and after both, as Gemma calls them: its `post_attention_layernorm` is another than Llama's."""
    for name, hf, gguf in (
        ("attn_norm", "input_layernorm", "attn_norm"),
        ("attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
        ("mlp_norm", "pre_feedforward_layernorm", "ffn_norm"),
        ("mlp_post_norm", "post_feedforward_layernorm", "post_ffw_norm"),
    ):
        yield norm_tensor(config, f"layers.{i}.{name}", f"model.layers.{i}.{hf}.weight", f"blk.{i}.{gguf}.weight")
