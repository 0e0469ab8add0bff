"""The Gemma 3 family, its language models: Gemma 2 without capped scores, with norms of q's and k's heads, with five
layers that have a window for each that has none, and with rotations of their own in those."""

from __future__ import annotations

import math
from typing import Any

from ...fields import Fields
from ..config import Rope
from ..parts import NORMED_ATTENTION, pre_and_post_norms
from ..windows import FULL, SLIDING, layer_count, layer_kinds, window_size, windows_of
from .family import Family
from .gemma2 import gguf_scale, unsaid

WINDOW, PERIOD, QUERY_SCALAR = 4096, 6, 256  # where config.json does not say
LAYERS_27B = 62  # see gemma2
LOCAL_THETA = 10_000.0


def _hf_own(fields: Fields) -> dict[str, Any]:
    kinds = layer_kinds(fields)
    if kinds is None:
        older = fields.integer("_sliding_window_pattern", PERIOD)
        period = fields.integer("sliding_window_pattern", older)
        kinds = _periodic(layer_count(fields, "num_hidden_layers"), period)
    return {
        "windows": windows_of(kinds, window_size(fields, WINDOW)) if SLIDING in kinds else (),
        "score_scale": 1 / math.sqrt(fields.number("query_pre_attn_scalar", QUERY_SCALAR)),
        "logit_cap": _logit_cap(fields),
        **unsaid(fields.integer("hidden_size")),
    }


def _gguf_own(fields: Fields) -> dict[str, Any]:
    layers = layer_count(fields, "block_count")
    return {
        "windows": windows_of(_periodic(layers, PERIOD), fields.integer("attention.sliding_window")),
        "score_scale": gguf_scale(fields, large=layers == LAYERS_27B),
        "logit_cap": _logit_cap(fields),
        "local_rope": Rope(LOCAL_THETA),
        **unsaid(fields.integer("embedding_length")),
    }


def _periodic(layers: int, period: int) -> list[str]:
    return [SLIDING if (i + 1) % period else FULL for i in range(layers)]


def _logit_cap(fields: Fields) -> float:
    key = "final_logit_softcapping"
    return 0.0 if fields.data.get(key) is None else fields.number(key)


GEMMA3 = Family(
    name="gemma3",
    hf_name="gemma3_text",
    hf_class="Gemma3ForCausalLM",
    attention=NORMED_ATTENTION,
    norms=pre_and_post_norms,
    hf_required={
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": 0,
        "use_bidirectional_attention": False,
    },
    gguf_pairs_rope=False,
    hf_own=_hf_own,
    gguf_own=_gguf_own,
    gguf_keys=frozenset({"final_logit_softcapping"}),
    tied_head=True,
    rope_theta=1_000_000.0,
    local_theta=LOCAL_THETA,
)
