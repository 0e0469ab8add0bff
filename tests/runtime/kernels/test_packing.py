"""Packing keeps every weight's value, in whatever order the rows are wanted."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from stored_rows import dequantized, stored_rows

from sapwood.runtime.kernels.bindings import TYPES, Library, Matrix, Workspace
from sapwood.runtime.kernels.packing import Packer, unpaired_order
from sapwood.runtime.kernels.stored import StoredMatrix, quantized

QUANTIZED = [name for name in TYPES if name.startswith("Q")]


def values(workspace: Workspace, matrix: Matrix) -> np.ndarray:
    """A packed matrix as its products have it: one with the identity rounds nothing."""
    return workspace.linear(matrix, np.eye(matrix.k, dtype=np.float32)).T


@pytest.mark.parametrize("type_name", TYPES)
def test_weights_have_the_values_that_gguf_gives_them(
    type_name: str, libraries: dict[str, Library], rng: np.random.Generator
) -> None:
    rows = stored_rows(type_name, 70, 512, rng)
    for library in libraries.values():
        workspace = library.workspace(2)
        packed = Packer(library, workspace).pack(type_name, rows.reshape(-1), 512)
        matrix = packed.struct()
        np.testing.assert_array_equal(values(workspace, matrix), dequantized(type_name, rows))


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_a_packed_matrix_is_no_larger_than_the_stored_one(type_name: str, library: Library) -> None:
    assert library.packed_bytes(type_name, 64, 1024) <= 1.03 * 64 * library.row_bytes(type_name, 1024)


def test_rows_come_in_the_order_that_is_asked_for(library: Library, rng: np.random.Generator) -> None:
    rows = stored_rows("Q4_1", 64, 64, rng)
    workspace = library.workspace(1)
    order = rng.permutation(64)
    matrix = Packer(library, workspace).pack("Q4_1", rows.reshape(-1), 64, order)
    expected = dequantized("Q4_1", rows)[order]
    np.testing.assert_array_equal(values(workspace, matrix.struct()), expected)


def test_unpairing_moves_rotated_pairs_half_a_head_apart() -> None:
    assert unpaired_order(8, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("type_name", "size", "k", "message"),
    [
        ("Q2_K", 84, 256, "there is no packing for Q2_K"),
        ("Q8_0", 34, 33, "does not divide into Q8_0 blocks"),
        ("Q8_0", 35, 32, "do not divide into Q8_0 rows"),
    ],
)
def test_what_cannot_be_packed_is_refused(type_name: str, size: int, k: int, message: str, library: Library) -> None:
    with pytest.raises(ValueError, match=message):
        Packer(library, library.workspace(1)).pack(type_name, np.zeros(size, np.uint8), k)


@pytest.mark.parametrize(("type_name", "error"), [("Q8_0", 0.01), ("Q4_0", 0.2)])
def test_plain_matrices_can_be_quantized(type_name: str, error: float, rng: np.random.Generator) -> None:
    values = rng.normal(size=(48, 96)).astype(np.float32)
    matrix = quantized(StoredMatrix("F32", 48, 96, values.view(np.uint8).reshape(-1)), type_name)
    back = dequantize(matrix.data.reshape(48, -1), GGMLQuantizationType[type_name])
    assert 0 < np.abs(back - values).max() < error * np.abs(values).max()


def test_quantizing_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="rows of 48 values"):
        quantized(StoredMatrix("F32", 1, 48, np.zeros(192, np.uint8)), "Q8_0")
    with pytest.raises(ValueError, match="stored as Q8_0"):
        quantized(StoredMatrix("Q8_0", 1, 32, np.zeros(34, np.uint8)), "Q4_0")
