"""Which layers of a checkpoint have a sliding window. This module must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError, UnsupportedModel
from ..fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
QWEN_WINDOW, QWEN_FULL_LAYERS = 4096, 28  # where config.json has neither `sliding_window` nor `max_window_layers`
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


def upper_windows(fields: Fields) -> dict[str, Any]:
    """For the Qwen families: the layers from `max_window_layers` on slide, or those that `layer_types` names."""
    slides = bool(fields.data.get("use_sliding_window"))
    kinds = layer_kinds(fields)
    if kinds is None and slides:
        first = fields.data.get("max_window_layers", QWEN_FULL_LAYERS)
        if type(first) is not int or first < 0:
            raise fields.invalid("max_window_layers", "a number of layers is needed")
        kinds = [SLIDING if i >= first else FULL for i in range(layer_count(fields, "num_hidden_layers"))]
    if kinds is None or SLIDING not in kinds:
        return {}
    if not slides:
        raise ModelError(f"{fields.source}: layer_types has {SLIDING!r}, but use_sliding_window is not true")
    return {"windows": windows_of(kinds, window_size(fields, QWEN_WINDOW))}
