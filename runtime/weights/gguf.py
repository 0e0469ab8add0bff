"""Reads GGUF files: metadata and tensor directory at once, tensor data on demand.

Every length and offset in a file is checked against the file's size before it is used, so that a truncated or
hostile file gives a `ModelError` and never a crash or a huge allocation. This module must not import torch, and
imports the `gguf` library (0.5 s) only where a tensor is dequantized.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65535
MAX_DIMS = 4
MIN_FIELD_BYTES = 8 + 4 + 1  # key length, value type, the shortest value
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, dimension count, one dimension, type, offset

# Types that can be dequantized: name -> (elements in a block, bytes in a block).
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}

PLAIN = {"F32": "<f4", "F16": "<f2"}  # numpy reads these by itself
PIECE_ELEMENTS = 1 << 15  # 128 KiB of float32; torch copies no more than this without waking other threads

# Every type number that ggml has given out, so that one that is refused is refused by its name.
TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

# Metadata value types: number -> struct format (fixed-size scalars only).
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file. `shape` is row-major (numpy order, the reverse of ggml's); `offset` is from byte 0."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


class GGUFFile:
    """A GGUF file opened for reading.

    metadata: key -> int, float, bool, str, list[str] (arrays of strings) or a 1-d numpy array (all other arrays).
    tensors: name -> TensorInfo, in file order.
    alignment: bytes; the tensor data's alignment inside the file.
    """

    def __init__(self, path: Path | str) -> None:
        """Reads the header. Raises ModelError for a file that is not whole, UnsupportedModel for an unknown type."""
        self.path = Path(path)
        try:
            self._data = np.memmap(self.path, dtype=np.uint8, mode="r")
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                reader = _HeaderReader(data, self.path.name)
                self.metadata, self.tensors = reader.read()
        except (OSError, ValueError) as error:  # numpy and mmap refuse an empty file with ValueError
            raise ModelError(f"cannot read {self.path}: {_reason(error)}") from error
        self.alignment = reader.alignment

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes as stored, uint8 [nbytes], mapped from the file (read-only)."""
        info = self._info(name)
        return self._data[info.offset : info.offset + info.nbytes]

    def dequantized(self, name: str) -> np.ndarray:
        """The tensor as a new float32 array in row-major `shape`."""
        whole = np.empty(math.prod(self._info(name).shape), np.float32)
        start = 0
        for piece in self.pieces(name):
            whole[start : start + piece.size] = piece
            start += piece.size
        return whole.reshape(self.tensors[name].shape)

    def dequantized_rows(self, name: str, rows: range) -> np.ndarray:
        """Some consecutive rows of a matrix, or of a stack of them, as a new float32 array [rows, columns]."""
        return _values(self.raw_rows(name, rows), self._info(name).type).reshape(len(rows), -1)

    def raw_rows(self, name: str, rows: range) -> np.ndarray:
        """The bytes of some consecutive rows as stored, as `raw` gives all. Those of a stack's matrices are counted
        through."""
        info = self._info(name)
        row_bytes = info.nbytes // math.prod(info.shape[:-1])
        return self.raw(name)[rows.start * row_bytes : rows.stop * row_bytes]

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The tensor's elements in order, as 1-d float32 arrays small enough to stay in a core's cache."""
        info = self._info(name)
        raw = self.raw(name)
        elements, block_bytes = BLOCKS[info.type]
        step = PIECE_ELEMENTS // elements * block_bytes
        for start in range(0, info.nbytes, step):
            yield _values(raw[start : start + step], info.type)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path.name} has no tensor {name!r}")
        return info


def _values(blocks: np.ndarray, type_name: str) -> np.ndarray:
    """Whole blocks' elements as a new 1-d float32 array."""
    if type_name in PLAIN:
        return blocks.view(PLAIN[type_name]).astype(np.float32)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return dequantize(blocks.reshape(1, -1), GGMLQuantizationType[type_name]).reshape(-1)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the file is empty" if "empty" in str(error) else str(error)


class _HeaderReader:
    """One pass over the header. `position` never passes `size`: every read is checked first."""

    def __init__(self, data: mmap.mmap, file_name: str) -> None:
        self.data = data
        self.file_name = file_name
        self.size = len(data)
        self.position = 0
        self.alignment = DEFAULT_ALIGNMENT

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        tensor_count, field_count = self._counts()
        metadata: dict[str, Any] = {}
        for _ in range(field_count):
            key = self._string("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(key)
        self._set_alignment(metadata)
        directory = [self._tensor() for _ in range(tensor_count)]
        return metadata, self._place(directory)

    def _counts(self) -> tuple[int, int]:
        if self.data[:4] != MAGIC:
            raise ModelError(f"{self.file_name} is not a GGUF file (it does not begin with 'GGUF')")
        self.position = 4
        version = self._u32("the version")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise UnsupportedModel(f"{self.file_name} is a big-endian GGUF file; only little-endian ones are read")
            raise UnsupportedModel(f"{self.file_name} has GGUF version {version}; versions 2 and 3 are read")
        tensor_count = self._u64("the tensor count")
        field_count = self._u64("the metadata count")
        left = self.size - self.position
        if tensor_count * MIN_TENSOR_BYTES + field_count * MIN_FIELD_BYTES > left:
            raise self._error(f"it declares {tensor_count} tensors and {field_count} metadata fields in {left} bytes")
        return tensor_count, field_count

    def _set_alignment(self, metadata: dict[str, Any]) -> None:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}; it must be a power of two of at least 8")
        self.alignment = alignment

    def _tensor(self) -> TensorInfo:
        """One directory entry; its offset still counts from the start of the data section."""
        name = self._string("a tensor's name", MAX_KEY_BYTES)
        what = f"tensor {name!r}"
        dims = self._u32(what)
        if not 1 <= dims <= MAX_DIMS:
            raise self._error(f"{what} has {dims} dimensions; 1 to {MAX_DIMS} are allowed")
        shape = tuple(self._u64(what) for _ in range(dims))[::-1]
        number = self._u32(what)
        type_name = TYPE_NAMES.get(number, f"number {number}")
        if type_name not in BLOCKS:
            raise UnsupportedModel(
                f"{self.file_name}: {what} has type {type_name}, which is not supported; "
                f"supported types are {', '.join(BLOCKS)}"
            )
        elements, block_bytes = BLOCKS[type_name]
        if min(shape) < 1 or shape[-1] % elements:
            raise self._error(f"{what} has shape {shape}, which does not divide into {type_name} blocks")
        nbytes = math.prod(shape) // elements * block_bytes
        return TensorInfo(name, shape, type_name, self._u64(what), nbytes)

    def _place(self, directory: list[TensorInfo]) -> dict[str, TensorInfo]:
        start = -(-self.position // self.alignment) * self.alignment
        tensors: dict[str, TensorInfo] = {}
        for info in directory:
            offset = start + info.offset
            if info.name in tensors:
                raise self._error(f"tensor {info.name!r} appears twice")
            if info.offset % self.alignment:
                raise self._error(f"tensor {info.name!r} is not aligned to {self.alignment} bytes")
            if offset + info.nbytes > self.size:
                raise self._error(
                    f"tensor {info.name!r} ends at byte {offset + info.nbytes} of a file of {self.size} bytes; "
                    "the download may be incomplete"
                )
            tensors[info.name] = TensorInfo(info.name, info.shape, info.type, offset, info.nbytes)
        return tensors

    # --- values -------------------------------------------------------------------------------------------------

    def _value(self, key: str) -> Any:
        what = f"metadata {key!r}"
        kind = self._u32(what)
        if kind == STRING:
            return self._string(what, self.size)
        if kind == ARRAY:
            return self._array(what)
        form = self._scalar_format(kind, what)
        return struct.unpack_from(form, self.data, self._advance(struct.calcsize(form), what))[0]

    def _array(self, what: str) -> list[str] | np.ndarray:
        kind = self._u32(what)
        count = self._u64(what)
        if kind == STRING:
            return self._strings(count, what)
        if kind == ARRAY:
            raise UnsupportedModel(f"{self.file_name}: {what} is an array of arrays, which is not supported")
        dtype = np.dtype(self._scalar_format(kind, what))
        start = self._advance(count * dtype.itemsize, what)
        return np.frombuffer(self.data[start : self.position], dtype)

    def _strings(self, count: int, what: str) -> list[str]:
        """`count` strings; a tight loop, since a vocabulary and its merges are some 100,000 of them."""
        if count * 8 > self.size - self.position:
            raise self._truncated(what)
        data, position, size, length_at = self.data, self.position, self.size, _U64.unpack_from
        pieces: list[bytes] = []
        for _ in range(count):
            start = position + 8
            if start > size:
                raise self._truncated(what)
            position = start + length_at(data, position)[0]
            if position > size:
                raise self._truncated(what)
            pieces.append(data[start:position])
        self.position = position
        try:
            return [str(piece, "utf-8") for piece in pieces]
        except UnicodeDecodeError:
            raise self._error(f"{what} holds text that is not UTF-8") from None

    def _string(self, what: str, limit: int) -> str:
        length = self._u64(what)
        if length > limit:
            raise self._truncated(what)
        start = self._advance(length, what)
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self._error(f"{what} is not UTF-8") from None

    def _scalar_format(self, kind: int, what: str) -> str:
        form = SCALARS.get(kind)
        if form is None:
            raise self._error(f"{what} has the unknown value type {kind}")
        return form

    def _u32(self, what: str) -> int:
        return _U32.unpack_from(self.data, self._advance(4, what))[0]

    def _u64(self, what: str) -> int:
        return _U64.unpack_from(self.data, self._advance(8, what))[0]

    def _advance(self, count: int, what: str) -> int:
        """Moves `count` bytes on and returns where it was, or raises if the file ends before that."""
        start = self.position
        if count > self.size - start:
            raise self._truncated(what)
        self.position = start + count
        return start

    def _truncated(self, what: str) -> ModelError:
        return self._error(f"it ends inside {what}; the download may be incomplete")

    def _error(self, message: str) -> ModelError:
        return ModelError(f"{self.file_name} is not a valid GGUF file: {message}")
