"""The Mistral family: Llama with a sliding window in every layer, or in none. In GGUF files it is called Llama."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedModel
from ...fields import Fields
from ..windows import FULL, SLIDING, layer_count, layer_kinds
from .family import Family

WINDOW = 4096  # where config.json has no `sliding_window`; null there is none


def _hf_own(fields: Fields) -> dict[str, Any]:
    layers = layer_count(fields, "num_hidden_layers")
    window = 0
    if fields.data.get("sliding_window", WINDOW) is not None:
        window = fields.integer("sliding_window", WINDOW)
    kind = SLIDING if window else FULL
    if set(layer_kinds(fields) or [kind]) != {kind}:
        raise UnsupportedModel(f"{fields.source}: layer_types other than {kind!r} are not supported")
    return {"windows": (window,) * layers if window else ()}


MISTRAL = Family(
    name="mistral",
    hf_class="MistralForCausalLM",
    hf_required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    gguf_pairs_rope=True,
    hf_own=_hf_own,
)
