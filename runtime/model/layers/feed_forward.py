"""The feed-forward part of a layer: what every token goes through alone. Another kind of it is another class here or
in a file of its own, and a `LayerPart` that a family names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from .arithmetic import Arithmetic
from .linear import Matrix, linear


class FeedForward(ABC):
    """A function of each row. On a GPU the shapes of what it computes follow from the number of rows, never from
    values: graphs record it, and `FixedRows` counts on it."""

    @abstractmethod
    def forward(self, x: Tensor, arithmetic: Arithmetic) -> Tensor:
        """x [rows, width], normed and left as it is -> this rank's share of a sum [rows, width]."""

    @abstractmethod
    def matrices(self) -> list[Matrix]:
        """Every matrix once."""

    def vectors(self) -> list[Tensor]:
        """What it has beside its matrices."""
        return []


@dataclass(frozen=True)
class GatedMLP(FeedForward):
    """down(act(gate(x)) * up(x)), gate and up stacked as the rows of one matrix [2 * inner, width].

    Where there are ranks, it has this rank's rows of both, and down's columns.
    """

    gate_up: Matrix
    down: Matrix

    def forward(self, x: Tensor, arithmetic: Arithmetic) -> Tensor:
        return linear(arithmetic.gate(linear(x, self.gate_up)), self.down)

    def matrices(self) -> list[Matrix]:
        return [self.gate_up, self.down]
