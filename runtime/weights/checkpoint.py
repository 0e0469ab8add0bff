"""One face for the files that weights come from: names, shapes, and a tensor at a time as torch has it.

Nothing here knows a model's structure; see `model.loading` for what is wanted from a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import torch

from ..errors import ModelError
from .gguf import PIECE_ELEMENTS, GGUFFile
from .quantization import scheme_of


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

        No more of the tensor than that, and a small piece, is in memory at one time.
        """

    def read(self, name: str) -> torch.Tensor:
        """The tensor as a new float32 one."""
        out = torch.empty(self.shape(name))
        self.read_into(name, out)
        return out


class GGUFCheckpoint(Checkpoint):
    """The tensors of a GGUF file, dequantized when read."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.source = file.path.name
        self.nbytes = sum(info.nbytes for info in file.tensors.values())

    def names(self) -> Iterable[str]:
        return self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return {"F16": torch.float16, "BF16": torch.bfloat16}.get(self.file.tensors[name].type, torch.float32)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        flat, start = out.view(-1), 0
        for piece in self.file.pieces(name):
            flat[start : start + piece.size] = torch.from_numpy(piece)
            start += piece.size

    def read_part(self, name: str, out: torch.Tensor, rows: range, columns: range) -> None:
        shape = self.shape(name)
        if len(shape) == 1:
            out.copy_(self.read(name)[rows.start : rows.stop])
            return
        step = max(1, PIECE_ELEMENTS // shape[1])
        for first in range(0, len(rows), step):
            piece = rows[first : first + step]
            whole = torch.from_numpy(self.file.dequantized_rows(name, piece))
            out[first : first + len(piece)] = whole[:, columns.start : columns.stop]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The checkpoint at `path`, a `.gguf` file or a Hugging Face directory. Raises ModelError."""
    path = Path(path)
    if path.is_dir():
        from .quantized_checkpoint import QuantizedCheckpoint
        from .safetensors import SafetensorsCheckpoint

        scheme = scheme_of(path)
        return SafetensorsCheckpoint(path) if scheme is None else QuantizedCheckpoint(path, scheme)
    if not path.is_file():
        raise ModelError(f"there is no file or directory {path}")
    return GGUFCheckpoint(GGUFFile(path))
