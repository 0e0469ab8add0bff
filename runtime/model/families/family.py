"""What a model family declares about itself: its names, its tensors, and what of its kind is not supported.

A family is data. It must not import torch: the configuration of a checkpoint is read in processes that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...fields import Fields
from ..config import ModelConfig
from ..windows import no_gguf_windows, no_windows


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a checkpoint, and where its rows go.

    part, row: the model's parameter which it belongs to, and its first row there (q, k and v are rows of one matrix).
    shape: as the checkpoint must hold it, row-major. hf / gguf: its name in the two kinds of checkpoints.
    rope_heads: for a matrix whose rows are rotated, the number of heads they divide into; else 0.
    gguf_adds_one: GGUF stores it with 1 added to every value.
    rows, columns: how ranks divide them, by the names of `shard.Shard`'s ranges; "" where every rank has them all.
    """

    part: str
    row: int
    shape: tuple[int, ...]
    hf: str
    gguf: str
    rope_heads: int = 0
    rows: str = ""
    columns: str = ""
    gguf_adds_one: bool = False


@dataclass(frozen=True)
class Family:
    """A model family. `name` is GGUF's `general.architecture`, and config.json's `model_type` if hf_name is no other.

    hf_class: what config.json's `architectures` must name.
    tensors: yields every tensor that a checkpoint of this configuration must hold.
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
    tensors: Callable[[ModelConfig], Iterator[TensorSpec]]
    hf_required: dict[str, Any]
    gguf_pairs_rope: bool
    hf_own: Callable[[Fields], dict[str, Any]] = no_windows
    gguf_own: Callable[[Fields], dict[str, Any]] = no_gguf_windows
    gguf_keys: frozenset[str] = frozenset()
    tied_head: bool = False
    hf_name: str = ""
    rope_theta: float = 10_000.0
    local_theta: float = 0.0
