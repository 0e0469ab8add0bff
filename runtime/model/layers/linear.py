"""Products with a model's matrices, whatever form those have in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


class QuantizedLinear(ABC):
    """A matrix [out, in] that stays quantized in memory. type: a name of its numbers, for people."""

    type: str

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out], in x's dtype."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What of it takes memory."""


Matrix = Tensor | QuantizedLinear


def linear(x: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [rows, in] times the matrix [out, in], plus bias [out]: [rows, out]."""
    if isinstance(matrix, Tensor):
        return F.linear(x, matrix, bias)
    out = matrix.apply(x)
    return out if bias is None else out.add_(bias)


def tensors_of(matrix: Matrix) -> list[Tensor]:
    """What of a matrix takes memory."""
    return [matrix] if isinstance(matrix, Tensor) else matrix.tensors()


def types_of(matrix: Matrix) -> str:
    """The name of a matrix's numbers, for people."""
    return str(matrix.dtype).removeprefix("torch.") if isinstance(matrix, Tensor) else matrix.type


@dataclass(frozen=True)
class RowBlocks(QuantizedLinear):
    """Matrices of different forms that are rows of one."""

    blocks: Sequence[Matrix]

    @property
    def type(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "+".join(sorted(set(map(types_of, self.blocks))))

    def apply(self, x: Tensor) -> Tensor:
        return torch.cat([linear(x, block) for block in self.blocks], dim=-1)

    def tensors(self) -> list[Tensor]:
        return [tensor for block in self.blocks for tensor in tensors_of(block)]
