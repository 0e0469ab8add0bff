"""Which layers of a checkpoint have a sliding window. This module must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError, UnsupportedModel
from ..fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
MOST_LAYERS = 10_000  # more are nonsense, and a list of them would take the memory


def no_windows(fields: Fields) -> dict[str, Any]:
    """For a family without windows: refuses any that config.json asks for."""
    kinds = fields.data.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != FULL for kind in kinds):
        raise UnsupportedModel(f"{fields.source}: layer_types other than {FULL!r} are not supported")
    window = fields.data.get("sliding_window")
    if fields.data.get("use_sliding_window", window is not None):
        raise UnsupportedModel(f"{fields.source}: sliding window attention ({window}) is not supported")
    return {}


def no_gguf_windows(fields: Fields) -> dict[str, Any]:
    """For a family whose GGUF files have no windows: refuses one."""
    fields.require("attention.sliding_window", 0)
    return {}


def layer_count(fields: Fields, key: str) -> int:
    """The number of layers, where something is to be made for each. Raises ModelError where it is absurd."""
    layers = fields.integer(key)
    if layers > MOST_LAYERS:
        raise fields.invalid(key, f"there can be {MOST_LAYERS} layers at most")
    return layers


def layer_kinds(fields: Fields) -> list[str] | None:
    """config.json's `layer_types`, one for each layer; None where it has none."""
    kinds = fields.data.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise UnsupportedModel(f"{fields.source}: layer_types other than {FULL!r} and {SLIDING!r} are not supported")
    layers = fields.integer("num_hidden_layers")
    if len(kinds) != layers:
        raise ModelError(f"{fields.source}: layer_types has {len(kinds)} entries for {layers} layers")
    return kinds


def window_size(fields: Fields, default: int) -> int:
    """config.json's `sliding_window`, `default` where it has none; null is refused, as some layers slide."""
    if fields.data.get("sliding_window", default) is None:
        raise fields.invalid("sliding_window", "a positive integer is needed")
    return fields.integer("sliding_window", default)


def windows_of(kinds: Sequence[str], window: int) -> tuple[int, ...]:
    """For ModelConfig: `window` for the layers that slide."""
    return tuple(window if kind == SLIDING else 0 for kind in kinds)
