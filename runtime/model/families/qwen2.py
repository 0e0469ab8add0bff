"""The Qwen2 family: Llama with biases on q, k and v, and in some checkpoints a sliding window in the upper layers."""

from __future__ import annotations

from ..parts import BIASED_ATTENTION
from ..windows import upper_windows
from .family import Family

QWEN2 = Family(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    attention=BIASED_ATTENTION,
    hf_required={"hidden_act": "silu", "attention_bias": True, "qkv_bias": True},
    gguf_pairs_rope=False,
    hf_own=upper_windows,
)
