"""Matrices that stay quantized on a GPU, and torch's kernels that compute with them.

int4: torch's tinygemm. A weight is (q - 8) * scale + zero in bfloat16, for q from 0 to 15 and groups of 32, 64, 128 or
256 input columns; ours are (q - z) * scale, so zero = (8 - z) * scale. Scale and zero are rounded to bfloat16, the only
thing that is lost. It reads the weights again for every 16 rows of inputs, so for many rows they are dequantized into a
passing bfloat16 matrix first; how torch lays the nibbles out is learned from its packing function.

float8: `_scaled_mm`, with a scale for each row of inputs (found when it is called) and for each output feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UnsupportedModel
from ...weights.quantization import Float8Scheme, Int4Scheme, Scheme
from ...weights.quantized import MIDDLE, Float8Matrix, Int4Matrix, QuantizedMatrix, nibbles
from .linear import Matrix, QuantizedLinear, RowBlocks, linear

GROUPS = (256, 128, 64, 32)
INNER_TILES = (8, 4, 2)  # of TILE_COLUMNS each, in the innermost part of the packed layout
TILE_ROWS, TILE_COLUMNS = 8, 16
FEW_ROWS = 128  # of inputs; with more, dequantizing first is faster
PASSING_ELEMENTS = 1 << 24  # weights that are unpacked at one time
FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = torch.finfo(FLOAT8).max
FLOAT8_UNIT = 16  # rows and columns of float8 matrices are multiples of this
LEAST_SCALE = 1e-12
KERNELS = {"int4": ((8, 0), "Ampere"), "float8": ((8, 9), "Ada or Hopper")}  # what they need


@dataclass(frozen=True)
class WeightKernels:
    """torch's functions on quantized weights, on one device; others stand in for them where there is no GPU.

    pack_int4: uint8 [n, k / 2], even columns in the high nibbles, and the number of inner tiles -> int32
    [n / 8, k / (16 * tiles), 32, tiles / 2].
    multiply_int4: x bfloat16 [rows, k], what pack_int4 gave, the group size, bfloat16 [k / group, n, (scale, zero)].
    multiply_float8: float8 [rows, k], float8 [k, n] of columns that are contiguous, float32 [rows, 1] and [1, n]; and
    by name the dtype of the result.
    """

    pack_int4: Callable[[Tensor, int], Tensor] = torch.ops.aten._convert_weight_to_int4pack.default
    multiply_int4: Callable[[Tensor, Tensor, int, Tensor], Tensor] = torch.ops.aten._weight_int4pack_mm.default
    multiply_float8: Callable[..., Tensor] = torch.ops.aten._scaled_mm.default

    def matrix(self, blocks: Sequence[QuantizedMatrix | Tensor]) -> Matrix:
        """The blocks as the rows of one matrix: fused where they are alike. Raises UnsupportedModel."""
        if all(isinstance(block, Float8Matrix) for block in blocks):
            return Float8Linear.of([block for block in blocks if isinstance(block, Float8Matrix)], self)
        int4 = [block for block in blocks if isinstance(block, Int4Matrix)]
        orders = [block.group_of.argsort(stable=True) for block in int4]
        if len(int4) == len(blocks) and all(torch.equal(orders[0], order) for order in orders):
            return Int4Linear.of(int4, orders[0], self)
        return RowBlocks([block if isinstance(block, Tensor) else self.matrix([block]) for block in blocks])


def kernel_of(scheme: Scheme) -> str:
    """The kernel that computes with such weights as they are: "int4", "float8", or "" where they are dequantized."""
    if isinstance(scheme, Int4Scheme):
        return "int4"
    assert isinstance(scheme, Float8Scheme)
    return "float8" if scheme.activations and scheme.per != "block" else ""


def why_not(kernel: str, dtype: torch.dtype, capability: tuple[int, int]) -> str:
    """What keeps a kernel from computing in `dtype` on a GPU of such a compute capability; "" where nothing does."""
    needed, name = KERNELS[kernel]
    if dtype != torch.bfloat16:
        return f"torch's {kernel} kernel computes in bfloat16, not {str(dtype).removeprefix('torch.')} (see --dtype)"
    if capability < needed:
        needs, has = (".".join(map(str, pair)) for pair in (needed, capability))
        return (
            f"torch's {kernel} kernel needs a GPU of compute capability {needs} ({name}) or newer; this one has {has}"
        )
    return ""


def weight_kernels(scheme: Scheme | None, dtype: torch.dtype, device: torch.device) -> WeightKernels | None:
    """What computes with weights of a scheme on a GPU; None where they are dequantized, or plain.

    Raises UnsupportedModel where the GPU, `dtype` or this build of torch cannot.
    """
    kernel = "" if scheme is None else kernel_of(scheme)
    if not kernel:
        return None
    kernels = WeightKernels()
    reason = why_not(kernel, dtype, torch.cuda.get_device_capability(device)) or trial(kernel, kernels, device)
    if reason:
        raise UnsupportedModel(f"weights quantized by {scheme} cannot be computed on this GPU: {reason}")
    return kernels


def trial(kernel: str, kernels: WeightKernels, device: torch.device) -> str:
    """Why a kernel does not work in this build of torch: a small matrix is tried, one column at a time."""
    n, k = 16, 2 * FEW_ROWS
    drawn = torch.arange(n * k, device=device).square().div(3, rounding_mode="floor").remainder(16).view(n, k)
    one, groups = torch.ones(n, 1, device=device), torch.zeros(k, dtype=torch.int64, device=device)
    given = Int4Matrix(drawn.to(torch.uint8), one.to(torch.uint8), one, groups)
    if kernel == "float8":
        given = Float8Matrix(drawn.to(FLOAT8), one, groups)
    try:
        matrix = kernels.matrix([given])
        columns = torch.eye(k, dtype=torch.bfloat16, device=device).split(FEW_ROWS)
        found = [torch.cat([linear(some, matrix) for some in columns]).T]
        if isinstance(matrix, Int4Linear):
            found.append(matrix.dequantized())
        if not all(torch.allclose(one.float(), given.dequantized(), rtol=0.01) for one in found):
            return f"torch's {kernel} kernel computes something else here"
    except (RuntimeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has no {kernel} kernel for it: {str(error).partition(chr(10))[0]}"
    return ""


@dataclass(frozen=True)
class Int4Linear(QuantizedLinear):
    """packed, group, scales_and_zeros: as `WeightKernels.multiply_int4` wants them.

    order: int64 [k], which input column comes where, None as they come. places: int64, where each element of a tile
    of TILE_ROWS rows is among its nibbles.
    """

    packed: Tensor
    group: int
    scales_and_zeros: Tensor
    order: Tensor | None
    places: Tensor
    kernels: WeightKernels
    type = "int4"

    @staticmethod
    def of(blocks: Sequence[Int4Matrix], order: Tensor, kernels: WeightKernels) -> Int4Linear:
        """The blocks as rows. order: their columns by group. Raises UnsupportedModel for what the kernel lacks."""
        n, k = sum(len(block.values) for block in blocks), len(order)
        tiles = next((tiles for tiles in INNER_TILES if k % (tiles * TILE_COLUMNS) == 0), 0)
        groups = [block.group_of[order] for block in blocks]
        size = next((size for size in GROUPS if all(_divides(one, size) for one in groups)), 0)
        if not tiles or not size or n % TILE_ROWS:
            raise UnsupportedModel(
                f"torch's int4 kernel has no matrix of {n} by {k} whose columns share scales as here; it needs "
                f"multiples of {TILE_ROWS} rows, and groups of {GROUPS[-1]} columns or more (those of a model with "
                "desc_act cannot be divided among ranks: use tp 1)"
            )
        values = torch.cat([block.values[:, order] for block in blocks])
        pairs = ((values[:, ::2] << 4) | values[:, 1::2]).contiguous()
        packed = kernels.pack_int4(pairs, tiles)
        scales, zeros = [], []
        for block, group_of in zip(blocks, groups, strict=True):
            used = group_of[::size]
            scale = block.scales[:, used].bfloat16()
            scales.append(scale)
            zeros.append(((MIDDLE - block.zeros[:, used].float()) * scale.float()).bfloat16())
        both = torch.stack((torch.cat(scales), torch.cat(zeros)), dim=-1).transpose(0, 1).contiguous()
        as_they_come = torch.equal(order, torch.arange(k, device=order.device))
        places = _learned_places(kernels, tiles, values.device)
        return Int4Linear(packed, size, both, None if as_they_come else order, places, kernels)

    def apply(self, x: Tensor) -> Tensor:
        if self.order is not None:
            x = x.index_select(1, self.order)
        if len(x) > FEW_ROWS:
            return F.linear(x, self.dequantized())
        if not len(x):
            return x.new_empty(0, self.scales_and_zeros.shape[1])
        return self.kernels.multiply_int4(x.contiguous(), self.packed, self.group, self.scales_and_zeros)

    def dequantized(self) -> Tensor:
        """bfloat16 [n, k], columns in the order of `order`: what the kernel multiplies with."""
        groups, n, _ = self.scales_and_zeros.shape
        k = groups * self.group
        out = torch.empty(n, k, dtype=torch.bfloat16, device=self.packed.device)
        step = max(1, PASSING_ELEMENTS // (TILE_ROWS * k))
        rows = step * TILE_ROWS
        pieces = zip(self.packed.split(step), self.scales_and_zeros.split(rows, 1), out.split(rows), strict=True)
        for packed, both, piece in pieces:
            tiles = nibbles(packed).flatten(2).index_select(2, self.places).unflatten(2, (TILE_ROWS, -1))
            values = tiles.transpose(1, 2).reshape(-1, groups, self.group)
            scales, zeros = both.float().transpose(0, 1).unsqueeze(3).unbind(2)
            torch.addcmul(zeros - MIDDLE * scales, values, scales, out=piece.unflatten(1, (groups, self.group)))
        return out

    def tensors(self) -> list[Tensor]:
        return [self.packed, self.scales_and_zeros] + ([] if self.order is None else [self.order])


def _divides(group_of: Tensor, size: int) -> bool:
    """Whether every run of so many columns, from the first on, is of one group."""
    if len(group_of) % size:
        return False
    runs = group_of.view(-1, size)
    return bool((runs == runs[:, :1]).all())


def _learned_places(kernels: WeightKernels, tiles: int, device: torch.device) -> Tensor:
    """Where each element of a packed tile, row by row, is among its nibbles: a tile of elements' own numbers is packed,
    one digit of four bits at a time."""
    size = TILE_ROWS * TILE_COLUMNS * tiles
    numbers = torch.arange(size, device=device).view(TILE_ROWS, -1)
    found = torch.zeros(size, dtype=torch.int64, device=device)
    for shift in (0, 4, 8):
        digits = ((numbers >> shift) & 15).to(torch.uint8)
        packed = kernels.pack_int4((digits[:, ::2] << 4) | digits[:, 1::2], tiles)
        found |= nibbles(packed).flatten().long() << shift
    return found.argsort()


@dataclass(frozen=True)
class Float8Linear(QuantizedLinear):
    """weight: float8 [n, k]; scales: float32 [1, n]."""

    weight: Tensor
    scales: Tensor
    kernels: WeightKernels
    type = "float8_e4m3fn"

    @staticmethod
    def of(blocks: Sequence[Float8Matrix], kernels: WeightKernels) -> Float8Linear:
        """The blocks, each with one scale a row, as rows. Raises UnsupportedModel for sizes that the kernel lacks."""
        weight = torch.cat([block.values for block in blocks])
        if any(size % FLOAT8_UNIT for size in weight.shape):
            n, k = weight.shape
            raise UnsupportedModel(
                f"torch's float8 kernel needs multiples of {FLOAT8_UNIT}, and a matrix is {n} by {k}"
            )
        scales = torch.cat([block.scales for block in blocks])
        return Float8Linear(weight, scales.view(1, -1), kernels)

    def apply(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, len(self.weight))
        scale = (x.abs().amax(1, keepdim=True).float() / FLOAT8_MAX).clamp(min=LEAST_SCALE)
        rounded = (x.float() / scale).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8).contiguous()
        return self.kernels.multiply_float8(rounded, self.weight.t(), scale, self.scales, out_dtype=x.dtype)

    def tensors(self) -> list[Tensor]:
        return [self.weight, self.scales]
