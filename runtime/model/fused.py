"""A layer's operations in FlashInfer's fused kernels, on CUDA: a dozen launches a layer, not forty.

They compute what `PlainArithmetic` does but for rounding: norms and rotations round once, at their end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .layers.norm import RMSNorm


class FusedArithmetic:
    """See `layers.arithmetic.Arithmetic`."""

    def __init__(self, model: Decoder, flashinfer: Any) -> None:
        """flashinfer: the module, whose root has the kernels."""
        self._kernels = flashinfer
        is_silu = model.config.activation == "silu"
        self._gate = flashinfer.silu_and_mul if is_silu else flashinfer.gelu_tanh_and_mul
        context = model.config.max_context
        self._cos_sin = self._local_cos_sin = _every_rotation(model.rope_frequencies, context)
        if model.local_frequencies is not None:
            self._local_cos_sin = _every_rotation(model.local_frequencies, context)

    def norm(self, x: Tensor, norm: RMSNorm) -> Tensor:
        kernel = self._kernels.gemma_rmsnorm if norm.adds_one else self._kernels.rmsnorm
        return kernel(x.reshape(-1, x.shape[-1]), norm.weight, norm.eps).view(x.shape)

    def add_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        kernels = self._kernels
        kernel = kernels.gemma_fused_add_rmsnorm if norm.adds_one else kernels.fused_add_rmsnorm
        kernel(x, residual, norm.weight, norm.eps)  # residual += x; x = its norm
        return x

    def gate(self, gate_up: Tensor) -> Tensor:
        return self._gate(gate_up)

    def rotations(self, positions: Tensor) -> tuple[_FusedRotation, _FusedRotation]:
        tables = (self._cos_sin, self._local_cos_sin)
        everywhere, local = (_FusedRotation(self._kernels, positions, table) for table in tables)
        return everywhere, local


@dataclass(frozen=True)
class _FusedRotation:
    kernels: Any
    positions: Tensor
    cos_sin: Tensor

    def apply(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """In the memory of q and k."""
        flat = q.flatten(1), k.flatten(1)  # views: a row's heads lie beside one another
        self.kernels.apply_rope_with_cos_sin_cache_inplace(
            self.positions, *flat, q.shape[-1], self.cos_sin, is_neox=True
        )
        return flat[0].view(q.shape), flat[1].view(k.shape)


def _every_rotation(frequencies: Tensor, context: int) -> Tensor:
    """Cosines, then sines, of every position: float32 [context, head_dim]."""
    positions = torch.arange(context, device=frequencies.device)
    angles = torch.outer(positions.float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
