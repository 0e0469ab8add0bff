"""A checkpoint's tensors as they are stored: the bytes of whole rows, and the GGUF name of their type."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from ..weights.checkpoint import Checkpoint
from ..weights.gguf_checkpoint import GGUFCheckpoint

PIECE_VALUES = 1 << 20  # converted to float32 at one time
TYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class StoredMatrix:
    """n rows of k values. `type`: as GGUF names it; data: uint8, the rows' bytes one after the other."""

    type: str
    n: int
    k: int
    data: np.ndarray


def stored_matrix(checkpoint: Checkpoint, name: str, rows: range | None = None) -> StoredMatrix:
    """The tensor `name` [n, k] of a checkpoint, or some of its rows; a GGUF file's bytes stay mapped from it.

    Raises ModelError.
    """
    *_, k = shape = checkpoint.shape(name)
    rows = rows or range(math.prod(shape[:-1]))
    if isinstance(checkpoint, GGUFCheckpoint):
        return StoredMatrix(checkpoint.file.tensors[name].type, len(rows), k, checkpoint.file.raw_rows(name, rows))
    tensor = torch.empty((len(rows), k), dtype=checkpoint.dtype(name))
    if tensor.shape == shape:
        checkpoint.read_into(name, tensor)
    else:
        checkpoint.read_part(name, tensor, rows, range(k))
    return StoredMatrix(TYPE_NAMES[tensor.dtype], len(rows), k, tensor.view(torch.uint8).numpy().reshape(-1))


def quantized(matrix: StoredMatrix, type_name: str) -> StoredMatrix:
    """A plain matrix in the quantized type `type_name` (Q8_0 or Q4_0), rounded as ggml's reference does.

    Raises ValueError where k does not divide into that type's blocks, or where the matrix is quantized already.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import quantize

    dtypes = {name: dtype for dtype, name in TYPE_NAMES.items()}
    if matrix.type not in dtypes:
        raise ValueError(f"the matrix is stored as {matrix.type}; only plain numbers can be quantized")
    target = GGMLQuantizationType[type_name]
    elements, block_bytes = GGML_QUANT_SIZES[target]
    if matrix.k % elements:
        raise ValueError(f"rows of {matrix.k} values do not divide into {type_name} blocks of {elements}")
    data = np.empty((matrix.n, matrix.k // elements * block_bytes), np.uint8)
    plain = torch.from_numpy(matrix.data).view(dtypes[matrix.type]).view(matrix.n, matrix.k)
    rows = max(1, PIECE_VALUES // matrix.k)
    for start in range(0, matrix.n, rows):
        piece = plain[start : start + rows].float().numpy()
        data[start : start + rows] = quantize(piece, target)
    return StoredMatrix(type_name, matrix.n, matrix.k, data.reshape(-1))
