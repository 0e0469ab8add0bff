"""Quantized matrices as checkpoints store them, unpacked into one form, and what their numbers mean.

A matrix is [n, k]: n output features by k input columns. It is made of tensors beside each other under one module's
name, which go here by what follows that name. Words are int32 with eight nibbles each, the lowest first.

    gptq    qweight [k / 8, n], qzeros [groups, n / 8], scales [groups, n], g_idx [k] (the group of each column)
    awq     qweight [k, n / 8], qzeros [groups, n / 8], scales [groups, n]; nibbles in the order of AWQ_ORDER
    packed  weight_packed [n, k / 8], weight_scale [n, groups], weight_zero_point [n / 8, groups], weight_g_idx [k]
    float8  weight [n, k], and its scales: one, [n, 1], or [n / 128, k / 128]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ModelError
from .quantization import BLOCK, Float8Scheme, Int4Scheme, Scheme

NIBBLES = 8  # in a word
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the feature, of eight, that each nibble of a word belongs to
MIDDLE = 8  # the zero of symmetric weights
ONES = 0x11111111  # 1 in every nibble

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Int4Matrix:
    """Weight [i, j] is (values[i, j] - zeros[i, g]) * scales[i, g] with g = group_of[j].

    values: uint8 [n, k], 0 to 15. zeros: uint8, scales: float32, both [n, groups]. group_of: int64 [k].
    """

    values: Tensor
    zeros: Tensor
    scales: Tensor
    group_of: Tensor

    def dequantized(self) -> Tensor:
        """float32 [n, k]. The difference is exact and the product rounded once."""
        zeros, values = self.zeros.float(), self.values.float()
        runs = _runs(self.group_of, self.scales.shape[1])
        if runs is not None:
            return values.unflatten(1, runs).sub_(zeros.unsqueeze(2)).mul_(self.scales.unsqueeze(2)).flatten(1)
        return values.sub_(zeros[:, self.group_of]).mul_(self.scales[:, self.group_of])

    def part(self, columns: range) -> Int4Matrix:
        """Some consecutive columns of it."""
        run = slice(columns.start, columns.stop)
        return Int4Matrix(self.values[:, run], self.zeros, self.scales, self.group_of[run])


@dataclass(frozen=True)
class Float8Matrix:
    """Weight [i, j] is values[i, j] * scales[i, scale_of[j]].

    values: float8_e4m3fn [n, k]. scales: float32 [n, scales of a row]. scale_of: int64 [k].
    """

    values: Tensor
    scales: Tensor
    scale_of: Tensor

    def dequantized(self) -> Tensor:
        """float32 [n, k]; each product is rounded once."""
        values, runs = self.values.float(), _runs(self.scale_of, self.scales.shape[1])
        if runs is not None:
            return values.unflatten(1, runs).mul_(self.scales.unsqueeze(2)).flatten(1)
        return values.mul_(self.scales[:, self.scale_of])

    def part(self, columns: range) -> Float8Matrix:
        """Some consecutive columns of it."""
        run = slice(columns.start, columns.stop)
        return Float8Matrix(self.values[:, run], self.scales, self.scale_of[run])


QuantizedMatrix = Int4Matrix | Float8Matrix


def _runs(group_of: Tensor, groups: int) -> tuple[int, int] | None:
    """How many groups of how many columns there are, where each is a run of as many, in order; else None."""
    size = len(group_of) // groups
    in_order = torch.arange(groups, device=group_of.device).repeat_interleave(size)
    return (groups, size) if torch.equal(group_of, in_order) else None


def unpacked(scheme: Scheme, tensors: Tensors, rows: range) -> QuantizedMatrix:
    """Some consecutive rows of a matrix, on the device of its tensors, whose shapes must be those above.

    Raises ModelError for a group of a column that there is not.
    """
    if isinstance(scheme, Float8Scheme):
        return _float8(scheme, tensors, rows)
    assert isinstance(scheme, Int4Scheme)
    return {"gptq": _gptq, "awq": _awq, "packed": _packed}[scheme.layout](scheme, tensors, rows)


def nibbles(words: Tensor) -> Tensor:
    """uint8 [..., 8] of int32 [...], the lowest first."""
    pairs = words.contiguous().view(torch.uint8).unflatten(-1, (-1, 4))  # little-endian, as all that torch runs on
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)


def _gptq(scheme: Int4Scheme, tensors: Tensors, rows: range) -> Int4Matrix:
    words = tensors["qweight"][:, rows.start : rows.stop]
    values = nibbles(words).transpose(0, 1).flatten(1)
    zeros = tensors["qzeros"]
    first, last = _words(rows)
    zeros = zeros[:, first:last]
    if scheme.zeros_less_one:
        zeros = zeros + ONES  # of whole words: so the zero 0, stored by subtracting from whole words, comes back too
    return Int4Matrix(
        values,
        _cut(nibbles(zeros).flatten(1), rows).T,
        _scales(tensors["scales"], rows),
        _groups(tensors, "g_idx", values, zeros.shape[0]),
    )


def _awq(_: Int4Scheme, tensors: Tensors, rows: range) -> Int4Matrix:
    first, last = _words(rows)
    place = torch.tensor(AWQ_ORDER).argsort()  # the nibble of each feature

    def features(name: str) -> Tensor:
        words = tensors[name][:, first:last]
        return _cut(nibbles(words)[..., place.to(words.device)].flatten(1), rows).T

    values, zeros = features("qweight").contiguous(), features("qzeros")
    scales = _scales(tensors["scales"], rows)
    return Int4Matrix(values, zeros, scales, _groups(tensors, "g_idx", values, zeros.shape[1]))


def _packed(scheme: Int4Scheme, tensors: Tensors, rows: range) -> Int4Matrix:
    values = nibbles(tensors["weight_packed"][rows.start : rows.stop]).flatten(1)
    scales = tensors["weight_scale"][rows.start : rows.stop].float()
    if scheme.has_zeros:
        first, last = _words(rows)
        words = tensors["weight_zero_point"][first:last]
        zeros = _cut(nibbles(words).transpose(1, 2).flatten(0, 1).T, rows).T
    else:
        zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8, device=scales.device)
    groups = _groups(tensors, "weight_g_idx", values, scales.shape[1])
    return Int4Matrix(values, zeros, scales, groups)


def _float8(scheme: Float8Scheme, tensors: Tensors, rows: range) -> Float8Matrix:
    values = tensors["weight"][rows.start : rows.stop]
    scales = tensors["scales"].float()
    columns = torch.arange(values.shape[1], device=values.device)
    if scheme.per == "block":
        numbers = torch.arange(rows.start, rows.stop, device=values.device)
        return Float8Matrix(values, scales[numbers // BLOCK], columns // BLOCK)
    scales = scales.expand(len(rows), 1) if scheme.per == "tensor" else scales[rows.start : rows.stop]
    return Float8Matrix(values, scales, torch.zeros_like(columns))


def _words(rows: range) -> tuple[int, int]:
    """The words, of eight features each, that have all of these rows: the first, and the one after the last."""
    return rows.start // NIBBLES, -(-rows.stop // NIBBLES)


def _cut(features: Tensor, rows: range) -> Tensor:
    """[m, len(rows)] of the features [m, 8 * words] that `_words` names."""
    start = rows.start % NIBBLES
    return features[:, start : start + len(rows)]


def _scales(stored: Tensor, rows: range) -> Tensor:
    """[n, groups] of [groups, n]."""
    return stored[:, rows.start : rows.stop].T.float()


def _groups(tensors: Tensors, name: str, values: Tensor, groups: int) -> Tensor:
    """The group of each column, int64 [k]: as the tensor `name` has it where it is stored, else by turns."""
    k = values.shape[1]
    stored = tensors.get(name)
    if stored is None:
        return torch.arange(k, device=values.device) // (k // groups)
    lowest, highest = int(stored.min()), int(stored.max())
    if lowest < 0 or highest >= groups:
        raise ModelError(f"{name} names groups from {lowest} to {highest}, and there are {groups}")
    return stored.long()
