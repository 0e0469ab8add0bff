"""The Qwen3 family: Llama with a norm of every head of q and k, and in some checkpoints windows as in Qwen2."""

from __future__ import annotations

from ..parts import NORMED_ATTENTION
from ..windows import upper_windows
from .family import Family

QWEN3 = Family(
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    attention=NORMED_ATTENTION,
    hf_required={"hidden_act": "silu", "attention_bias": False},
    gguf_pairs_rope=False,
    hf_own=upper_windows,
)
