"""One face for the files that weights come from: names, shapes, and a tensor at a time as torch has it.

Nothing here knows a model's structure; see `model.loading` for what is wanted from a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch


class Checkpoint(ABC):
    """The tensors of a model on disk. `source` names it in errors; `nbytes` is the size of its tensors on disk."""

    source: str
    nbytes: int

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The row-major shape of a tensor; KeyError if there is none of that name."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """What the tensor's values are when read without loss: float32 for quantized ones."""

    @abstractmethod
    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fills `out`, contiguous and of the tensor's size, converting to its dtype. May be called from threads.

        Raises ModelError if the data cannot be read.
        """

    @abstractmethod
    def read_part(self, name: str, out: torch.Tensor, rows: range, columns: range) -> None:
        """As `read_into`, for some consecutive rows and columns of a matrix, or elements (`rows`) of a vector.

        A stack of matrices [count, rows, columns] is taken for one in which they lie below one another. No more of the
        tensor than that, and a small piece, is in memory at one time.
        """

    def read(self, name: str) -> torch.Tensor:
        """The tensor as a new float32 one."""
        out = torch.empty(self.shape(name))
        self.read_into(name, out)
        return out
