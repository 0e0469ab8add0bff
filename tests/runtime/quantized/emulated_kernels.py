"""What stands in for torch's CUDA kernels on quantized weights where there is no GPU.

Packing and products are those of ATen/native/cuda/int4mm.cu, as its comments and index arithmetic describe them, and
what that file checks of its arguments is checked. `_scaled_mm` is torch's own, which the CPU has too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sapwood.runtime.model.layers.quantized_linear import WeightKernels

LANES = 32


def places(n: int, k: int, tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """The row and column of each packed value: int [n / 8, k / (16 * tiles), 32, tiles / 2, 8], lowest first."""
    row_tile, outer, lane, pair, nibble = np.indices((n // 8, k // (16 * tiles), LANES, tiles // 2, 8))
    byte = (outer * tiles + 2 * pair) * 8 + lane % 4 + 4 * (nibble % 4)  # of a row's pairs of columns
    return row_tile * 8 + lane // 4, 2 * byte + nibble // 4  # the high nibble of a pair is its even column


def pack_int4(pairs: Tensor, tiles: int) -> Tensor:
    n, k = pairs.shape[0], 2 * pairs.shape[1]
    assert pairs.dtype == torch.uint8
    assert pairs.is_contiguous()
    assert tiles in (2, 4, 8)
    assert n % 8 == 0
    assert k % (16 * tiles) == 0
    values = np.stack((pairs.numpy() >> 4, pairs.numpy() & 15), axis=-1).reshape(n, k).astype(np.uint32)
    words = (values[places(n, k, tiles)] << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return torch.from_numpy(words.view(np.int32))


def unpack_int4(packed: Tensor) -> np.ndarray:
    """int [n, k]: what was packed."""
    row_tiles, outer, _, half = packed.shape
    n, k = 8 * row_tiles, outer * 32 * half
    values = np.zeros((n, k), np.int32)
    values[places(n, k, 2 * half)] = (
        packed.numpy().view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    )
    return values


def check_int4(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> None:
    (rows, k), n = x.shape, 8 * packed.shape[0]
    assert x.dtype == scales_and_zeros.dtype == torch.bfloat16
    assert packed.dtype == torch.int32
    assert x.is_contiguous()
    assert packed.is_contiguous()
    assert scales_and_zeros.is_contiguous()
    assert rows > 0
    assert group in (32, 64, 128, 256)
    assert packed.shape[1:] == (k // (32 * packed.shape[3]), LANES, packed.shape[3])
    assert packed.shape[3] in (1, 2, 4)
    assert scales_and_zeros.shape == (k // group, n, 2)
    assert k % group == 0


def multiply_int4(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    check_int4(x, packed, group, scales_and_zeros)
    scales, zeros = scales_and_zeros.double().repeat_interleave(group, 0).permute(2, 1, 0)
    weights = ((torch.from_numpy(unpack_int4(packed)) - 8) * scales + zeros).bfloat16()
    return (x.float() @ weights.float().T).bfloat16()


def multiply_int4_on_cpu(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """The same by torch's own kernel for CPUs, whose packing is another, and whose meaning is the same."""
    check_int4(x, packed, group, scales_and_zeros)
    own = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(unpack_int4(packed)), 1)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, own, group, scales_and_zeros)


def multiply_float8(x: Tensor, weight: Tensor, scale_x: Tensor, scale_weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """As `_scaled_mm` does on CUDA; the CPU's is less strict."""
    (rows, k), n = x.shape, weight.shape[1]
    assert x.dtype == weight.dtype == torch.float8_e4m3fn
    assert x.is_contiguous()
    assert weight.stride() == (1, k)
    assert k % 16 == n % 16 == 0
    assert scale_x.shape == (rows, 1)
    assert scale_weight.shape == (1, n)
    assert scale_x.dtype == scale_weight.dtype == torch.float32
    assert scale_x.is_contiguous()
    assert scale_weight.is_contiguous()
    return torch.ops.aten._scaled_mm(x, weight, scale_x, scale_weight, out_dtype=out_dtype)


EMULATED = WeightKernels(pack_int4, multiply_int4, multiply_float8)
