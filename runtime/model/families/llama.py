"""The Llama family: grouped-query attention with rotary positions, SwiGLU, RMS norms, no biases."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import ModelConfig
from .family import Family, TensorSpec


def llama_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of a Llama checkpoint (matrices are [out, in])."""
    width, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield TensorSpec(
        "embed", 0, (config.vocab_size, width), "model.embed_tokens.weight", "token_embd.weight", rows="vocab"
    )
    for i in range(config.layers):
        part, hf, gguf = f"layers.{i}", f"model.layers.{i}", f"blk.{i}"
        attn, mlp = f"{hf}.self_attn", f"{hf}.mlp"
        yield TensorSpec(f"{part}.attn_norm", 0, (width,), f"{hf}.input_layernorm.weight", f"{gguf}.attn_norm.weight")
        yield TensorSpec(
            f"{part}.qkv", 0, (q_rows, width), f"{attn}.q_proj.weight", f"{gguf}.attn_q.weight", config.heads, "heads"
        )
        yield TensorSpec(
            f"{part}.qkv",
            q_rows,
            (kv_rows, width),
            f"{attn}.k_proj.weight",
            f"{gguf}.attn_k.weight",
            config.kv_heads,
            "kv_heads",
        )
        yield TensorSpec(
            f"{part}.qkv",
            q_rows + kv_rows,
            (kv_rows, width),
            f"{attn}.v_proj.weight",
            f"{gguf}.attn_v.weight",
            rows="kv_heads",
        )
        yield TensorSpec(
            f"{part}.out", 0, (width, q_rows), f"{attn}.o_proj.weight", f"{gguf}.attn_output.weight", columns="heads"
        )
        yield TensorSpec(
            f"{part}.mlp_norm", 0, (width,), f"{hf}.post_attention_layernorm.weight", f"{gguf}.ffn_norm.weight"
        )
        yield TensorSpec(
            f"{part}.gate_up", 0, (inner, width), f"{mlp}.gate_proj.weight", f"{gguf}.ffn_gate.weight", rows="inner"
        )
        yield TensorSpec(
            f"{part}.gate_up", inner, (inner, width), f"{mlp}.up_proj.weight", f"{gguf}.ffn_up.weight", rows="inner"
        )
        yield TensorSpec(
            f"{part}.down", 0, (width, inner), f"{mlp}.down_proj.weight", f"{gguf}.ffn_down.weight", columns="inner"
        )
    yield TensorSpec("norm", 0, (width,), "model.norm.weight", "output_norm.weight")
    if not config.tied_head:
        yield TensorSpec("head", 0, (config.vocab_size, width), "lm_head.weight", "output.weight", rows="vocab")


LLAMA = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    tensors=llama_tensors,
    hf_required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    gguf_pairs_rope=True,
)
