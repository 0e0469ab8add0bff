"""A layer's operations in torch's own: the reference for all others."""

from __future__ import annotations

from torch import Tensor

from .decoder import Decoder
from .layers.activations import gated
from .layers.norm import RMSNorm
from .layers.rotary import Rotation


class PlainArithmetic:
    """See `layers.arithmetic.Arithmetic`."""

    def __init__(self, model: Decoder) -> None:
        self._model = model

    def norm(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return norm.apply(x)

    def add_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        residual += x
        return norm.apply(residual)

    def gate(self, gate_up: Tensor) -> Tensor:
        return gated(gate_up, self._model.config.activation)

    def rotations(self, positions: Tensor) -> tuple[Rotation, Rotation]:
        model = self._model
        rotation = local = Rotation.at(positions, model.rope_frequencies, model.dtype)
        if model.local_frequencies is not None:
            local = Rotation.at(positions, model.local_frequencies, model.dtype)
        return rotation, local
