"""What a model declares about its tensors: where a checkpoint has them, and where in the model they go.

All of it is data. It must not import torch: checkpoints' configurations are read in processes that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from .config import ModelConfig

if TYPE_CHECKING:
    from .layers.parameters import LayerParameters

PartT = TypeVar("PartT", covariant=True)


@dataclass(frozen=True)
class RowsOf:
    """Rows of a tensor that a checkpoint has, of `shape`, from the row `start` on: of a matrix in which several are
    fused, or of a stack of matrices [count, rows, columns], taken for one in which they lie below one another."""

    name: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class TensorSpec:
    """One vector or matrix of a checkpoint, and where it goes.

    part: the model's parameter which it belongs to, `layers.N.NAME` where it is a layer's. Its rows follow those of the
        specs before it of the same part (q, k and v are rows of one matrix).
    shape: as the checkpoint must hold it, row-major. hf / gguf: where the two kinds of checkpoints have it: a tensor's
        name, or rows of one.
    rope_dim: where its rows are rotated, how many of them are a head; else 0.
    rows, columns: how ranks divide them, as `Shard.span` understands it; "" where every rank has them all.
    gguf_adds_one: GGUF stores it with 1 added to every value.
    """

    part: str
    shape: tuple[int, ...]
    hf: str | RowsOf
    gguf: str | RowsOf
    rope_dim: int = 0
    rows: str = ""
    columns: str = ""
    gguf_adds_one: bool = False

    def source(self, *, is_gguf: bool) -> RowsOf:
        """Where a checkpoint of that kind has it."""
        where = self.gguf if is_gguf else self.hf
        return where if isinstance(where, RowsOf) else RowsOf(where, self.shape, 0)

    @property
    def layer_and_name(self) -> tuple[int | None, str]:
        """The number of the layer that has the part, and its name there; None and its name where no layer has it."""
        if not self.part.startswith("layers."):
            return None, self.part
        _, layer, name = self.part.split(".", 2)
        return int(layer), name


LayerTensors = Callable[[ModelConfig, int], Iterator[TensorSpec]]  # the whole model's configuration, a layer's number


@dataclass(frozen=True)
class LayerPart(Generic[PartT]):
    """A kind of attention or of feed-forward: what it needs of a checkpoint, and what it is made into.

    tensors: everything that such a part of a layer must have in a checkpoint.
    build: makes the part of a layer's weights; the configuration has this rank's sizes. It may import torch.
    """

    tensors: LayerTensors
    build: Callable[[LayerParameters, ModelConfig], PartT]
