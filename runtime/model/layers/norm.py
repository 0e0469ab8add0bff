"""The norms of activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension; where it adds one, the weight is one more."""

    weight: Tensor
    eps: float
    adds_one: bool = False

    def apply(self, x: Tensor) -> Tensor:
        """Computed in float32, in x's dtype. Where it adds one, everything is rounded once, as in Gemma."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(self.eps))
        if self.adds_one:
            return (wide * scale).mul_(1 + self.weight.float()).to(x.dtype)
        return (wide * scale).to(x.dtype) * self.weight
