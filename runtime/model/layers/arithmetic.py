"""How the parts of a layer are computed, as those ask for it: in torch's operations, or in a GPU's fused kernels."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .norm import RMSNorm


class Rotate(Protocol):
    """Turns the queries and keys of some tokens by those tokens' positions."""

    def apply(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k [tokens, its heads, head_dim], which may be overwritten -> the same shapes."""
        ...


class Arithmetic(Protocol):
    """The operations that there is more than one way to compute; a part must not compute them itself."""

    def norm(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """The norm of x [..., width]."""
        ...

    def add_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> Tensor:
        """Adds x [rows, width] to `residual`, in its memory, and gives the norm of that. x may be overwritten."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """act(gate) * up, [rows, inner], of gate and up beside one another, [rows, 2 * inner]."""
        ...

    def rotations(self, positions: Tensor) -> tuple[Rotate, Rotate]:
        """At integer positions [tokens]: of the layers without a window, and of those with one."""
        ...
