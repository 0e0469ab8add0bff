"""What a checkpoint says about its model, in one form for all kinds. This module must not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import ModelError
from ..sampling.recommendation import SamplingDefaults


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
    """Sizes and constants of a decoder. `max_context` is in tokens; `eos_ids` may be empty where none is named.

    windows: how many tokens a query of each layer sees, its own the last of them; 0 where it sees all. Empty where
    every layer sees all.
    score_scale: what attention's scores are multiplied by; 0 is 1 / sqrt(head_dim). score_cap, logit_cap: what x,
    a scaled score or a logit, becomes is cap * tanh(x / cap); 0 leaves it.
    embed_scale: what embeddings are multiplied by, once it is rounded to the weights' dtype.
    activation: of the MLPs' gates: "silu", or "gelu_tanh" (GELU in its approximation by tanh).
    norms_add_one: norms multiply by 1 + their weight.
    local_rope: the positions of layers with a window; None where they have the others'.
    recommended: how its makers would have tokens chosen; None where they do not say.
    own: what only the family's own parts understand, as an immutable record of theirs.
    """

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
    windows: tuple[int, ...] = ()
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embed_scale: float = 1.0
    activation: str = "silu"
    norms_add_one: bool = False
    local_rope: Rope | None = None
    own: object = None
    recommended: SamplingDefaults | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads do not divide into {self.kv_heads} key-value heads")
        if self.head_dim % 2:
            raise ModelError(f"the head dimension {self.head_dim} is odd; rotary positions need an even one")

    @property
    def attention_scale(self) -> float:
        """What attention's scores are multiplied by."""
        return self.score_scale or 1 / math.sqrt(self.head_dim)

    def window(self, layer: int) -> int:
        """How many tokens a query of the layer sees; 0: all."""
        return self.windows[layer] if self.windows else 0

    def within(self, context: int) -> ModelConfig:
        """As attention need see the model where sequences have `context` tokens at most (0: as many as they may):
        windows that hold a whole sequence are none."""
        longest = min(context or self.max_context, self.max_context)
        windows = tuple(0 if window >= longest else window for window in self.windows)
        return replace(self, windows=windows if any(windows) else ())
