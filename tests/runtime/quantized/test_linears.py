"""Matrices that stay quantized, as a GPU has them: each product is that of the dequantized weights, but for rounding.

torch's kernels for CUDA are emulated; what they are called with is checked against the real ones' signatures, and what
scale and zero mean against torch's int4 kernel for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_kernels import EMULATED, multiply_float8, multiply_int4, multiply_int4_on_cpu, pack_int4
from packers import FORMATS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution import runner_loading
from sapwood.runtime.model.layers import quantized_linear
from sapwood.runtime.model.layers.linear import RowBlocks, linear
from sapwood.runtime.model.layers.quantized_linear import (
    FEW_ROWS,
    Float8Linear,
    Int4Linear,
    WeightKernels,
    kernel_of,
    trial,
    weight_kernels,
    why_not,
)
from sapwood.runtime.options import ExecutorOptions
from sapwood.runtime.weights.quantization import read_scheme
from sapwood.runtime.weights.quantized import Float8Matrix, Int4Matrix

Saved = Callable[..., tuple[Path, Any]]


INT4 = [name for name in FORMATS if name.startswith(("gptq", "awq", "packed"))]


FLOAT8 = ["fp8", "fp8 as transformers", "float-quantized tensors", "float-quantized channels"]


DEQUANTIZED = ["fp8 blocks", "float-quantized weights only"]


CPU_KERNEL = replace(EMULATED, multiply_int4=multiply_int4_on_cpu)


def random_int4(n: int, k: int, group: int, *, ordered: bool = False, seed: int = 0) -> Int4Matrix:
    torch.manual_seed(seed)
    groups = torch.arange(k) // group
    return Int4Matrix(
        torch.randint(0, 16, (n, k), dtype=torch.uint8),
        torch.randint(0, 17, (n, k // group), dtype=torch.uint8),
        torch.rand(n, k // group) * 0.05 + 0.01,
        groups[torch.randperm(k)] if ordered else groups,
    )


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


# --- one matrix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [EMULATED, CPU_KERNEL], ids=["emulated", "torch's for CPUs"])
@pytest.mark.parametrize("ordered", [False, True], ids=["", "ordered"])
@pytest.mark.parametrize(
    ("n", "k", "group"), [(64, 256, 32), (32, 160, 32), (96, 192, 64), (32, 384, 128), (64, 96, 96)]
)
def test_int4_products_are_those_of_the_dequantized_weights(
    kernels: WeightKernels, ordered: bool, n: int, k: int, group: int
) -> None:
    matrix = random_int4(n, k, group, ordered=ordered and group != 96)
    found = kernels.matrix([matrix])
    assert isinstance(found, Int4Linear)
    for rows in (1, 16, FEW_ROWS, FEW_ROWS + 1):
        x = torch.randn(rows, k).bfloat16()
        assert difference(found.apply(x), x.float() @ matrix.dequantized().T) < 0.006
    assert found.apply(x[:0]).shape == (0, n)
    columns = torch.randn(k, 5).bfloat16()
    assert difference(found.apply(columns.T), columns.float().T @ matrix.dequantized().T) < 0.006


def test_the_order_of_columns_is_one_that_matters() -> None:
    """So that the test above would fail without it."""
    matrix = random_int4(64, 256, 32, ordered=True)
    found = EMULATED.matrix([matrix])
    assert isinstance(found, Int4Linear)
    assert found.order is not None
    x = torch.randn(4, 256).bfloat16()
    assert difference(replace(found, order=None).apply(x), x.float() @ matrix.dequantized().T) > 0.5


def test_dequantizing_many_rows_gives_the_very_weights_that_the_kernel_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_linear, "PASSING_ELEMENTS", 5000)  # in several passes
    for tiles, k in ((8, 256), (4, 192), (2, 160)):
        found = EMULATED.matrix([random_int4(40, k, 32, ordered=True)])
        assert isinstance(found, Int4Linear)
        assert found.packed.shape == (5, k // (16 * tiles), 32, tiles // 2)
        columns = torch.eye(k, dtype=torch.bfloat16)
        kernel = EMULATED.multiply_int4(columns, found.packed, found.group, found.scales_and_zeros)
        assert torch.equal(found.dequantized().T, kernel)


def test_places_are_learned_whatever_the_packing() -> None:
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(1))

    def scrambled(pairs: Tensor, tiles: int) -> Tensor:
        n, k = pairs.shape[0], 2 * pairs.shape[1]
        values = torch.stack((pairs >> 4, pairs & 15), dim=-1).view(n // 8, 8, k // 128, 128).transpose(1, 2)
        mixed = values.reshape(n // 8, k // 128, 1024)[..., order].view(n // 8, k // 128, 32, 4, 8).long()
        words = (mixed << (4 * torch.arange(8))).sum(-1)
        return words.to(torch.int32)

    matrix = random_int4(16, 256, 64)
    found = replace(EMULATED, pack_int4=scrambled).matrix([matrix])
    assert isinstance(found, Int4Linear)
    torch.testing.assert_close(found.dequantized().float(), matrix.dequantized(), rtol=0.01, atol=0.005)


def test_a_zero_weight_is_nearly_zero_whatever_the_scale() -> None:
    """q = z: scale and zero are rounded together, so that what is left is the rounding of one product."""
    matrix = replace(random_int4(16, 64, 32), values=torch.full((16, 64), 3, dtype=torch.uint8))
    matrix = replace(matrix, zeros=torch.full((16, 2), 3, dtype=torch.uint8))
    found = EMULATED.matrix([matrix])
    assert isinstance(found, Int4Linear)
    assert found.dequantized().abs().max() <= 0.06 * 5 * 2**-8


@pytest.mark.parametrize("inputs", [torch.bfloat16])
def test_float8_products_round_each_row_of_inputs_by_itself(inputs: torch.dtype) -> None:
    torch.manual_seed(3)
    scales = torch.rand(48, 1) * 0.01
    matrix = Float8Matrix(torch.randn(48, 64).to(torch.float8_e4m3fn), scales, torch.zeros(64, dtype=torch.int64))
    found = EMULATED.matrix([matrix])
    assert isinstance(found, Float8Linear)
    x = (torch.randn(6, 64) * torch.tensor([1e-4, 1.0, 3.0, 100.0, 1e4, 0.0])[:, None]).to(inputs)
    largest = x.float().abs().amax(1, keepdim=True).clamp(min=1e-9)
    rounded = (x.float() / largest * 448).to(torch.float8_e4m3fn).float() * largest / 448
    expected = rounded @ matrix.dequantized().T
    got = found.apply(x)
    for row in range(5):
        assert difference(got[row], expected[row]) < 0.005
    assert not got[5].any()
    assert difference(got[:5], x[:5].float() @ matrix.dequantized().T) > 0.005  # the inputs are rounded
    assert found.apply(x[:0]).shape == (0, 48)
    assert torch.equal(found.apply(x.T.contiguous().T), got)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_float8_keeps_what_is_not_finite(bad: float) -> None:
    matrix = Float8Matrix(
        torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1), torch.zeros(16, dtype=torch.long)
    )
    found = EMULATED.matrix([matrix])
    x = torch.ones(2, 16, dtype=torch.bfloat16)
    x[1, 3] = bad
    got = linear(x, found)
    assert got[0].isfinite().all()
    assert not got[1].isfinite().any()


def test_alike_rows_are_one_matrix_and_others_are_computed_apart() -> None:
    alike = [random_int4(n, 128, group, seed=n) for n, group in ((32, 64), (16, 64), (16, 32))]
    fused = EMULATED.matrix(alike)
    assert isinstance(fused, Int4Linear)
    assert fused.group == 32
    plain = torch.randn(8, 128).bfloat16()
    apart = EMULATED.matrix([*alike[:2], random_int4(16, 128, 32, ordered=True), plain])
    assert isinstance(apart, RowBlocks)
    assert apart.type == "bfloat16+int4"
    x, bias = torch.randn(5, 128).bfloat16(), torch.randn(72).bfloat16()
    expected = torch.cat([each.dequantized() for each in alike])
    assert difference(linear(x, fused), x.float() @ expected.T) < 0.006
    ordered = random_int4(16, 128, 32, ordered=True)
    expected = torch.cat([*(each.dequantized() for each in (*alike[:2], ordered)), plain.float()])
    assert difference(linear(x, apart, bias), x.float() @ expected.T + bias.float()) < 0.006
    assert sum(tensor.nbytes for tensor in apart.tensors()) < expected.nbytes / 2


def test_columns_are_cut_where_groups_allow() -> None:
    matrix = random_int4(16, 256, 128)
    for columns, group in ((range(128), 128), (range(32, 256), 32), (range(64, 192), 64), (range(96, 224), 32)):
        part = EMULATED.matrix([matrix.part(columns)])
        assert isinstance(part, Int4Linear)
        assert part.group == group
        expected = matrix.dequantized()[:, columns.start : columns.stop]
        torch.testing.assert_close(part.dequantized().float(), expected, rtol=0.01, atol=0.005)
    for columns in (range(16, 144), range(100)):
        with pytest.raises(UnsupportedModel, match=r"has no matrix of 16 by .*groups of 32 columns or more"):
            EMULATED.matrix([matrix.part(columns)])
    with pytest.raises(UnsupportedModel, match="has no matrix of 12 by 256"):
        EMULATED.matrix([random_int4(12, 256, 128)])


def test_float8_sizes_are_checked() -> None:
    matrix = Float8Matrix(
        torch.ones(24, 16).to(torch.float8_e4m3fn), torch.ones(24, 1), torch.zeros(16, dtype=torch.long)
    )
    with pytest.raises(UnsupportedModel, match="needs multiples of 16, and a matrix is 24 by 16"):
        EMULATED.matrix([matrix])


# --- torch's own signatures -------------------------------------------------------------------------------------------


def on_gpu(value: Any) -> Any:
    """A tensor of its form that, in a FakeTensorMode, pretends to be on a GPU."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


def test_the_calls_are_ones_that_torch_takes_on_cuda() -> None:
    """Every call to the emulated kernels is repeated with tensors of its shapes that pretend to be on a GPU."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Tensor]] = []

    def recorded(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*given: Any, **named: Any) -> Tensor:
            calls.append((name, given, named, function(*given, **named)))
            return calls[-1][3]

        return call

    kernels = WeightKernels(
        recorded("pack_int4", pack_int4),
        recorded("multiply_int4", multiply_int4),
        recorded("multiply_float8", multiply_float8),
    )
    int4 = [random_int4(32, k, 32, ordered=True) for k in (256, 192, 160)]
    columns = torch.zeros(64, dtype=torch.int64)
    float8 = [Float8Matrix(torch.ones(n, 64).to(torch.float8_e4m3fn), torch.ones(n, 1), columns) for n in (16, 32)]
    for matrix in (*int4, *float8):
        for rows in (1, 3, 128):
            linear(torch.ones(rows, matrix.values.shape[1], dtype=torch.bfloat16), kernels.matrix([matrix]))
    assert {name for name, *_ in calls} == {"pack_int4", "multiply_int4", "multiply_float8"}
    torchs = WeightKernels()
    with FakeTensorMode():
        for name, given, named, result in calls:
            found = getattr(torchs, name)(*map(on_gpu, given), **named)
            assert (found.shape, found.dtype, found.device.type) == (result.shape, result.dtype, "cuda")


@pytest.mark.parametrize("rows", [0, 1, FEW_ROWS, FEW_ROWS + 1])
def test_all_else_that_is_computed_is_there_on_cuda_too(rows: int) -> None:
    found = EMULATED.matrix([random_int4(32, 256, 32, ordered=True)])
    assert isinstance(found, Int4Linear)
    with FakeTensorMode():
        names = ("packed", "scales_and_zeros", "places", "order")
        fakes = {name: on_gpu(getattr(found, name)) for name in names}
        got = replace(found, kernels=WeightKernels(), **fakes).apply(
            torch.empty(rows, 256, dtype=torch.bfloat16, device="cuda")
        )
        assert (got.shape, got.dtype, got.device.type) == ((rows, 32), torch.bfloat16, "cuda")


def test_torch_would_refuse_other_calls() -> None:
    """So that the test above could fail."""
    torchs = WeightKernels()
    with FakeTensorMode():
        one = torch.empty(3, 64, dtype=torch.float8_e4m3fn, device="cuda")
        scale = torch.empty(3, 1, device="cuda")
        with pytest.raises(RuntimeError, match="col_major"):
            torchs.multiply_float8(one, torch.empty(64, 16, device="cuda").to(one.dtype), scale, scale)
        with pytest.raises(RuntimeError, match="uint8"):
            torchs.pack_int4(torch.empty(8, 64, dtype=torch.int32, device="cuda"), 8)


# --- what is needed ---------------------------------------------------------------------------------------------------


def test_what_a_kernel_needs_is_said() -> None:
    bfloat16 = torch.bfloat16
    assert (
        why_not("int4", bfloat16, (8, 0))
        == why_not("int4", bfloat16, (9, 0))
        == why_not("float8", bfloat16, (8, 9))
        == ""
    )
    assert (
        why_not("int4", torch.float16, (9, 0)) == "torch's int4 kernel computes in bfloat16, not float16 (see --dtype)"
    )
    assert "needs a GPU of compute capability 8.0 (Ampere) or newer; this one has 7.5" in why_not(
        "int4", bfloat16, (7, 5)
    )
    assert "compute capability 8.9 (Ada or Hopper) or newer; this one has 8.6" in why_not("float8", bfloat16, (8, 6))


@pytest.mark.parametrize("name", FORMATS)
def test_which_kernel_computes_a_format(name: str) -> None:
    scheme = read_scheme({"quantization_config": FORMATS[name].config})
    assert scheme is not None
    assert kernel_of(scheme) == ("int4" if name in INT4 else "float8" if name in FLOAT8 else "")


def test_plain_and_dequantized_weights_need_no_kernel() -> None:
    device = torch.device("cuda", 0)
    assert weight_kernels(None, torch.float16, device) is None
    scheme = read_scheme({"quantization_config": FORMATS["fp8 blocks"].config})
    assert weight_kernels(scheme, torch.float16, device) is None


@pytest.mark.parametrize("kernel", ["int4", "float8"])
def test_a_trial_finds_kernels_that_are_missing_or_wrong(kernel: str) -> None:
    cpu = torch.device("cpu")
    assert trial(kernel, EMULATED, cpu) == ""
    missing = trial("int4", WeightKernels(), cpu)
    assert missing.startswith(f"torch {torch.__version__} has no int4 kernel for it: Could not run")

    def wrong(x: Tensor, *more: Any, **named: Any) -> Tensor:
        function = multiply_int4 if kernel == "int4" else multiply_float8
        return function(x.float().roll(1, 1).to(x.dtype), *more, **named)

    broken = replace(EMULATED, **{f"multiply_{kernel}": wrong})
    assert trial(kernel, broken, cpu) == f"torch's {kernel} kernel computes something else here"


def test_a_trial_finds_a_packing_that_is_not_by_tiles() -> None:
    def by_columns(pairs: Tensor, tiles: int) -> Tensor:
        return pack_int4(pairs, tiles).flip(1)

    def multiply(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
        return multiply_int4(x, packed.flip(1), group, scales_and_zeros)

    kernels = replace(EMULATED, pack_int4=by_columns, multiply_int4=multiply)
    assert trial("int4", kernels, torch.device("cpu")) == "torch's int4 kernel computes something else here"


@pytest.mark.parametrize(
    ("capability", "dtype", "sentence"),
    [
        (
            (7, 5),
            torch.bfloat16,
            r"quantized by awq \(4 bits, groups of 32\) cannot be computed on this GPU: .*has 7\.5",
        ),
        ((9, 0), torch.float16, "computes in bfloat16, not float16"),
    ],
)
def test_a_gpu_that_cannot_is_refused_before_weights_are_read(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, sentence: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(runner_loading, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(UnsupportedModel, match=sentence):
        runner_loading.load_runner(
            saved("awq")[0],
            lambda _: pytest.fail("a pool was made"),
            ExecutorOptions(attention_backend="torch"),
            dtype=dtype,
            device=torch.device("cuda", 0),
        )
