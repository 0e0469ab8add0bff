"""Matrix products: right to rounding, and the same bits whatever computes them and beside whatever."""

from __future__ import annotations

import numpy as np
import pytest
from stored_rows import dequantized, stored_rows

from sapwood.runtime.kernels.bindings import TYPES, Library
from sapwood.runtime.kernels.packing import Packer

N, K, ROWS = 100, 768, 130


def product(library: Library, type_name: str, rows: np.ndarray, x: np.ndarray, threads: int = 2) -> np.ndarray:
    workspace = library.workspace(threads)
    packed = Packer(library, workspace).pack(type_name, rows.reshape(-1), K)
    return workspace.linear(packed.struct(), x)


@pytest.mark.parametrize("type_name", TYPES)
def test_products_equal_those_of_the_dequantized_weights(
    type_name: str, library: Library, rng: np.random.Generator
) -> None:
    rows = stored_rows(type_name, N, K, rng)
    x = rng.normal(size=(ROWS, K)).astype(np.float32)
    weights = dequantized(type_name, rows).astype(np.float64)
    y = product(library, type_name, rows, x)
    bound = np.abs(x).astype(np.float64) @ np.abs(weights).T  # what the errors of K roundings can add up to
    assert (np.abs(y - x.astype(np.float64) @ weights.T) < 1e-6 * bound).all()


@pytest.mark.parametrize("type_name", TYPES)
def test_a_row_does_not_depend_on_how_many_there_are(
    type_name: str, library: Library, rng: np.random.Generator
) -> None:
    rows = stored_rows(type_name, N, K, rng)
    x = rng.normal(size=(ROWS, K)).astype(np.float32)
    workspace = library.workspace(2)
    matrix = Packer(library, workspace).pack(type_name, rows.reshape(-1), K)
    whole = workspace.linear(matrix.struct(), x)
    for count in [*range(1, 20), 31, 48, 64, 65, 97]:
        assert np.array_equal(workspace.linear(matrix.struct(), x[-count:]), whole[-count:]), count


@pytest.mark.parametrize("type_name", TYPES)
def test_all_instruction_sets_and_thread_counts_give_the_same_bits(
    type_name: str, libraries: dict[str, Library], rng: np.random.Generator
) -> None:
    rows = stored_rows(type_name, N, K, rng)
    x = rng.normal(size=(70, K)).astype(np.float32)
    first = product(next(iter(libraries.values())), type_name, rows, x, threads=1)
    for library in libraries.values():
        for threads in (1, 2, 3):
            assert np.array_equal(product(library, type_name, rows, x, threads), first), (library.isa, threads)
        for count in (1, 2, 5):
            assert np.array_equal(product(library, type_name, rows, x[:count]), first[:count]), library.isa


def test_a_bias_is_added_once(library: Library, rng: np.random.Generator) -> None:
    workspace = library.workspace(2)
    matrix = Packer(library, workspace).pack("Q8_0", stored_rows("Q8_0", N, K, rng).reshape(-1), K)
    x = rng.normal(size=(9, K)).astype(np.float32)
    bias = rng.normal(size=N).astype(np.float32)
    assert np.array_equal(workspace.linear(matrix.struct(), x, bias), workspace.linear(matrix.struct(), x) + bias)


def test_arrays_of_the_wrong_shape_are_refused(library: Library, rng: np.random.Generator) -> None:
    workspace = library.workspace(1)
    matrix = Packer(library, workspace).pack("F32", stored_rows("F32", 4, 8, rng).reshape(-1), 8)
    with pytest.raises(ValueError, match="expected"):
        workspace.linear(matrix.struct(), np.zeros((2, 9), np.float32))
    with pytest.raises(ValueError, match="expected"):
        workspace.linear(matrix.struct(), np.zeros((2, 8), np.float32), np.zeros(5, np.float32))
    assert workspace.linear(matrix.struct(), np.zeros((0, 8), np.float32)).shape == (0, 4)
