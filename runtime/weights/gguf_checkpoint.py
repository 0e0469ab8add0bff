"""A GGUF file as a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .checkpoint import Checkpoint
from .gguf import PIECE_ELEMENTS, GGUFFile


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
        step = max(1, PIECE_ELEMENTS // shape[-1])
        for first in range(0, len(rows), step):
            piece = rows[first : first + step]
            whole = torch.from_numpy(self.file.dequantized_rows(name, piece))
            out[first : first + len(piece)] = whole[:, columns.start : columns.stop]
