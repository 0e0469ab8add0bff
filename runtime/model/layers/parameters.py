"""One layer's weights by name, as the parts that it is composed of are given them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from .linear import Matrix


@dataclass(frozen=True)
class LayerParameters:
    """Names are those of the `TensorSpec`s' parts without the layer's; where there are ranks, they are of this rank."""

    named: Mapping[str, Matrix]

    def matrix(self, name: str) -> Matrix:
        """A matrix [out, in], quantized or not. Raises KeyError."""
        return self.named[name]

    def vector(self, name: str) -> Tensor | None:
        """A vector; None where the layer has none of that name."""
        found = self.named.get(name)
        assert found is None or isinstance(found, Tensor)
        return found
