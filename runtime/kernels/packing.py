"""Turns a checkpoint's rows into packed matrices. It must not change a weight's value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .native import ALIGN_BYTES, SPARE_BYTES, TYPES, Library, Matrix, Workspace, address


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
    """Packs matrices with a library's workspace."""

    def __init__(self, library: Library, workspace: Workspace) -> None:
        self._library = library
        self._workspace = workspace

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
        out = aligned_bytes(self._library.packed_bytes(type_name, n, k))
        self._workspace.pack(type_name, n, k, np.uint64(address(raw)) + numbers * np.uint64(row_bytes), out)
        return PackedMatrix(type_name, n, k, out)


def unpaired_order(rows: int, heads: int) -> np.ndarray:
    """Which GGUF row comes where so that a head's rotated pairs (2i, 2i + 1) become (i, i + half): int64 [rows]."""
    return np.arange(rows).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)


def aligned_bytes(size: int) -> np.ndarray:
    """Uninitialized bytes at a multiple of a cache line, with some to spare behind them."""
    raw = np.empty(size + ALIGN_BYTES + SPARE_BYTES, np.uint8)
    start = -address(raw) % ALIGN_BYTES
    return raw[start : start + size]
