"""What a model family declares about itself: its names, the parts of its layers, and what of its kind is not supported.

A family is data. It must not import torch: the configuration of a checkpoint is read in processes that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...fields import Fields
from ..config import ModelConfig
from ..parts import GATED_MLP, SELF_ATTENTION, norm_tensor, pre_norms
from ..tensors import LayerPart, LayerTensors, TensorSpec
from ..windows import no_gguf_windows, no_windows

if TYPE_CHECKING:
    from ..layers.feed_forward import FeedForward
    from ..layers.self_attention import SelfAttention


@dataclass(frozen=True)
class Family:
    """A model family. `name` is GGUF's `general.architecture`, and config.json's `model_type` if hf_name is no other.

    hf_class: what config.json's `architectures` must name.
    attention, feed_forward, norms: what its layers are composed of; the norms by the names that `DecoderLayer` has.
    hf_required: config.json keys that must have this value where present; anything else is refused by name.
    gguf_pairs_rope: GGUF stores the rows of q and k so that rotated pairs are neighbours (2i, 2i + 1), while the model
        here, as Hugging Face's, rotates (i, i + head_dim / 2).
    hf_own, gguf_own: give what of a ModelConfig not every family has, by name, from config.json and from GGUF's keys
        (without the architecture's prefix); they refuse what they do not know, as UnsupportedModel or ModelError.
    gguf_keys: GGUF's keys that only this family's gguf_own understands. tied_head: whether the head is tied where
        config.json does not say; rope_theta: that of positions where it does not; local_theta: that of layers with a
        window, in a family where they have their own, else 0.
    """

    name: str
    hf_class: str
    hf_required: dict[str, Any]
    gguf_pairs_rope: bool
    attention: LayerPart[SelfAttention] = SELF_ATTENTION
    feed_forward: LayerPart[FeedForward] = GATED_MLP
    norms: LayerTensors = pre_norms
    hf_own: Callable[[Fields], dict[str, Any]] = no_windows
    gguf_own: Callable[[Fields], dict[str, Any]] = no_gguf_windows
    gguf_keys: frozenset[str] = frozenset()
    tied_head: bool = False
    hf_name: str = ""
    rope_theta: float = 10_000.0
    local_theta: float = 0.0

    def tensors(self, config: ModelConfig) -> Iterator[TensorSpec]:
        """Every tensor that a checkpoint of this configuration must hold, one after the other: there may be absurdly
        many."""
        vocabulary = (config.vocab_size, config.hidden_size)
        yield TensorSpec("embed", vocabulary, "model.embed_tokens.weight", "token_embd.weight", rows="vocab")
        for i in range(config.layers):
            for tensors in (self.attention.tensors, self.feed_forward.tensors, self.norms):
                yield from tensors(config, i)
        yield norm_tensor(config, "norm", "model.norm.weight", "output_norm.weight")
        if not config.tied_head:
            yield TensorSpec("head", vocabulary, "lm_head.weight", "output.weight", rows="vocab")
