"""The Gemma 2 family: windows in every other layer, capped scores and logits, four norms a layer, gates with GELU."""

from __future__ import annotations

import math
from typing import Any

from ...fields import Fields
from ..parts import pre_and_post_norms
from ..windows import FULL, SLIDING, layer_count, layer_kinds, window_size, windows_of
from .family import Family

WINDOW, QUERY_SCALAR, SCORE_CAP, LOGIT_CAP = 4096, 256, 50.0, 30.0  # where the checkpoint does not say
LAYERS_27B = 46  # the one size whose queries are not scaled by the head dimension; GGUF does not say, llama.cpp knows


def _hf_own(fields: Fields) -> dict[str, Any]:
    kinds = layer_kinds(fields) or _alternating(layer_count(fields, "num_hidden_layers"))
    return {
        "windows": windows_of(kinds, window_size(fields, WINDOW)) if SLIDING in kinds else (),
        "score_scale": 1 / math.sqrt(fields.number("query_pre_attn_scalar", QUERY_SCALAR)),
        "score_cap": _cap(fields, "attn_logit_softcapping", SCORE_CAP),
        "logit_cap": _cap(fields, "final_logit_softcapping", LOGIT_CAP),
        **unsaid(fields.integer("hidden_size")),
    }


def _gguf_own(fields: Fields) -> dict[str, Any]:
    """The scale of queries and the layers that slide are llama.cpp's, as GGUF does not say them."""
    layers, width = layer_count(fields, "block_count"), fields.integer("embedding_length")
    return {
        "windows": windows_of(_alternating(layers), fields.integer("attention.sliding_window", WINDOW)),
        "score_scale": gguf_scale(fields, large=layers == LAYERS_27B),
        "score_cap": fields.number("attn_logit_softcapping", SCORE_CAP),
        "logit_cap": fields.number("final_logit_softcapping", LOGIT_CAP),
        **unsaid(width),
    }


def gguf_scale(fields: Fields, *, large: bool) -> float:
    """How the 27B model of a generation scales queries, and the others do (0: by the head dimension)."""
    if not large:
        return 0.0
    return 1 / math.sqrt(fields.integer("embedding_length") / fields.integer("attention.head_count"))


def _alternating(layers: int) -> list[str]:
    return [FULL if i % 2 else SLIDING for i in range(layers)]


def _cap(fields: Fields, key: str, default: float) -> float:
    """The cap; 0, which is none, where config.json says null."""
    return fields.number(key, default) if fields.data.get(key, default) is not None else 0.0


def unsaid(width: int) -> dict[str, Any]:
    """What no checkpoint of Gemma says."""
    return {"embed_scale": math.sqrt(width), "activation": "gelu_tanh", "norms_add_one": True}


GEMMA2 = Family(
    name="gemma2",
    hf_class="Gemma2ForCausalLM",
    norms=pre_and_post_norms,
    hf_required={
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "use_bidirectional_attention": False,
    },
    gguf_pairs_rope=False,
    hf_own=_hf_own,
    gguf_own=_gguf_own,
    gguf_keys=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    tied_head=True,
)
