"""Rotary positions: the angles by which queries and keys are turned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import Rope


def rope_frequencies(rope: Rope, head_dim: int, factors: Tensor | None) -> Tensor:
    """Angle per position of each rotated pair, float32 [head_dim / 2]. `factors` only for scaling "factors".

    The llama3 rule is Meta's (llama-models, `apply_scaling`), as transformers' `_compute_llama3_parameters` has it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "factors":
        assert factors is not None
        return frequencies / factors.float()
    if rope.scaling == "llama3":
        turns = rope.original_context * frequencies / (2 * math.pi)  # full turns within the original context
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return (1 - keep) * frequencies / rope.factor + keep * frequencies
    return frequencies


@dataclass(frozen=True)
class Rotation:
    """The cosines and sines of a step's tokens, each [tokens, 1, head_dim / 2] in the activations' dtype."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def at(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
        """positions: integer [tokens]. Angles are computed in float32."""
        angles = torch.outer(positions.float(), frequencies).unsqueeze(1)
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))

    def apply(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates pairs (i, i + head_dim / 2) of q and k, each [tokens, its heads, head_dim]."""
        low, high = torch.cat((q, k), dim=1).chunk(2, dim=-1)
        both = torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), dim=-1)
        return both[:, : q.shape[1]], both[:, q.shape[1] :]
