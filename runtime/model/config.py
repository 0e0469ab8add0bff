"""What a checkpoint says about its model, in one form for all kinds. This module must not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ModelError


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: the angle of pair i at position p is p * theta ** (-2i / head_dim), then scaled.

    scaling: "none"; "linear" (angles divided by `factor`); "llama3" (low frequencies divided by `factor`, high ones
    kept, those between interpolated, by the wavelength relative to `original_context`); "factors" (each pair's angle
    divided by its own factor from the checkpoint).
    """

    theta: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder. `max_context` is in tokens; `eos_ids` may be empty where none is named."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    max_context: int
    rope: Rope
    tied_head: bool
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads do not divide into {self.kv_heads} key-value heads")
        if self.head_dim % 2:
            raise ModelError(f"the head dimension {self.head_dim} is odd; rotary positions need an even one")
