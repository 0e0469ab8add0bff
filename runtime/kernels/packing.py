"""Turns a checkpoint's rows into packed matrices. It must not change a weight's value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bindings import ALIGN_BYTES, SPARE_BYTES, TYPES, Library, Matrix, Workspace, address


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix of n output features by k inputs, in column blocks. `type` is a GGUF type's name; `data` uint8."""

    type: str
    n: int
    k: int
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.data.size

    def struct(self) -> Matrix:
        """For the kernels; valid as long as this object lives."""
        return Matrix(TYPES[self.type], 0, self.n, self.k, address(self.data))


class Packer:
    """Packs matrices with a library's workspace. Those of one packer share large pieces of memory."""

    def __init__(self, library: Library, workspace: Workspace) -> None:
        self._library = library
        self._workspace = workspace
        self._memory = _Memory()

    def pack(self, type_name: str, raw: np.ndarray, k: int, order: np.ndarray | None = None) -> PackedMatrix:
        """raw: the stored rows' bytes, uint8 [n * row bytes]. order [n]: which stored row comes where; None as stored.

        Raises ValueError for an unknown type or rows that do not divide.
        """
        if type_name not in TYPES:
            raise ValueError(f"there is no packing for {type_name}; there is for {', '.join(TYPES)}")
        row_bytes = self._library.row_bytes(type_name, k)
        n, rest = divmod(raw.size, row_bytes)
        if rest or not raw.flags.c_contiguous or raw.dtype != np.uint8:
            raise ValueError(f"{raw.size} bytes do not divide into {type_name} rows of {row_bytes}")
        numbers = np.arange(n, dtype=np.uint64) if order is None else np.asarray(order).astype(np.uint64)
        if numbers.shape != (n,) or (n and numbers.max() >= n):
            raise ValueError(f"the order of {n} rows must name {n} of them")
        out = self._memory.take(self._library.packed_bytes(type_name, n, k))
        self._workspace.pack(type_name, n, k, np.uint64(address(raw)) + numbers * np.uint64(row_bytes), out)
        return PackedMatrix(type_name, n, k, out)


def unpaired_order(rows: int, head_dim: int) -> np.ndarray:
    """Which GGUF row comes where so that a head's rotated pairs (2i, 2i + 1) become (i, i + half): int64 [rows]."""
    return np.arange(rows).reshape(-1, head_dim // 2, 2).transpose(0, 2, 1).reshape(-1)


class _Memory:
    """Hands out uninitialized bytes that begin at a cache line and may be read somewhat past their end.

    They come from large pieces, which numpy asks the system to hold in huge pages: a step reads all of the weights, and
    with small pages it would wait for the addresses as well.
    """

    PIECE_BYTES = 32 << 20

    def __init__(self) -> None:
        self._piece = np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        start = -address(self._piece) % ALIGN_BYTES
        if self._piece.size < start + size + SPARE_BYTES:
            self._piece = np.empty(max(size + ALIGN_BYTES + SPARE_BYTES, self.PIECE_BYTES), np.uint8)
            start = -address(self._piece) % ALIGN_BYTES
        taken, self._piece = self._piece[start : start + size], self._piece[start + size + SPARE_BYTES :]
        return taken
