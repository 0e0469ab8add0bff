"""The Llama family: grouped-query attention with rotary positions, SwiGLU, RMS norms, no biases."""

from __future__ import annotations

from .family import Family

LLAMA = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    hf_required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    gguf_pairs_rope=True,
)
