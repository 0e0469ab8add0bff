"""Quantized weights on a GPU: torch's kernels against the dequantized weights, and how fast a model of int4 decodes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from figures import Figures, decode_step, prefill, seconds_of
from models import LLAMA_8B, TINY, Place, make_runner, random_model
from torch import Tensor

from sapwood.runtime.model.decoder import Decoder
from sapwood.runtime.model.layers.linear import Matrix, linear
from sapwood.runtime.model.layers.quantized_linear import FEW_ROWS, KERNELS, Int4Linear, WeightKernels, trial, why_not
from sapwood.runtime.weights.quantized import Float8Matrix, Int4Matrix

GROUP = 32  # of the models' matrices; other sizes are among the products


def kernels_of(place: Place) -> WeightKernels:
    """torch's own, or in a rehearsal what emulates them."""
    if not place.rehearsal:
        return WeightKernels()
    return importlib.import_module("emulated_kernels").EMULATED


def quantized_errors(place: Place) -> Figures:
    """The largest relative difference of products with int4 and float8 matrices; whether a row's product depends on the
    rows beside it; and what a product of the 8B shape takes beside that of a bfloat16 matrix."""
    capability = (9, 0) if place.rehearsal else torch.cuda.get_device_capability(place.device)
    kernels = kernels_of(place)
    trials = {name: why_not(name, torch.bfloat16, capability) or trial(name, kernels, place.device) for name in KERNELS}
    torch.manual_seed(0)
    errors = {name: 0.0 for name, reason in trials.items() if not reason}
    alone = True
    sizes = [(64, 160), (48, 384)] if place.rehearsal else [(64, 160), (96, 11_008), (6144, 4096), (4096, 14_336)]
    for n, k in sizes:
        for group, ordered in ((32, False), (32, True), (128, False), (256, False)):
            if k % group == 0 and "int4" in errors:
                found, expected = _int4(place, kernels, n, k, group, ordered)
                errors["int4"] = max(errors["int4"], _product_error(place, found, expected))
                alone &= _rows_are_alone(place, found, k)
        if "float8" in errors:
            found, expected = _float8(place, kernels, n, k)
            errors["float8"] = max(errors["float8"], _product_error(place, found, expected, rounds=True))
    return {
        "refused": {name: reason for name, reason in trials.items() if reason},
        "relative_error": errors,
        "rows_are_alone": alone,
        "beside_bfloat16": _times(place, kernels) if "int4" in errors else {},
        "ok": bool(errors) and max(errors.values()) < 0.01,
    }


def int4_decode(place: Place, ceiling: Figures) -> Figures:
    """The 8B-shaped model with all of its layers in int4: decode of one sequence and of 32, and a prefill."""
    place = replace(place, dtype=torch.bfloat16)
    config = TINY if place.rehearsal else LLAMA_8B
    kernels = kernels_of(place)
    plain = random_model(replace(config, layers=1), place)
    layer = plain.layers[0]
    layers = [
        replace(
            layer,
            attention=_drawn_part(place, kernels, layer.attention, ("qkv", "out")),
            feed_forward=_drawn_part(place, kernels, layer.feed_forward, ("gate_up", "down")),
        )
        for _ in range(config.layers)
    ]
    head: Any = plain.head
    model = Decoder(config, plain.embed, layers, plain.norm, head, plain.rope_frequencies)
    context = 40 if place.rehearsal else 1000
    runner = make_runner(model, place, 34 * context, most=4 if place.rehearsal else 32)
    read = runner.weight_bytes - model.embed.nbytes  # a row of it is read
    table = []
    with torch.inference_mode():
        for entries in (1, 2) if place.rehearsal else (1, 32):
            prefill(runner, entries, context - 1)
            step = decode_step(entries, context - 1, config.vocab_size)
            seconds = seconds_of(place, lambda step=step: runner.logits(runner.forward(step)), 50)
            per_token = 2 * config.layers * config.kv_heads * config.head_dim * place.dtype.itemsize
            rate = (read + entries * context * per_token) / seconds / 1e9
            table.append({"decode": entries, "ms": seconds * 1e3, "gbs": rate, "of_copy": rate / ceiling["copy_gbs"]})
        tokens = 130 if place.rehearsal else 2048
        seconds = seconds_of(place, lambda: prefill(runner, 1, tokens), 5)
        table.append({"prefill": tokens, "ms": seconds * 1e3})
    return {"weights": runner.dtype, "weight_gb": runner.weight_bytes / 1e9, "table": table, "ok": True}


def _int4(place: Place, kernels: WeightKernels, n: int, k: int, group: int, ordered: bool) -> tuple[Matrix, Int4Matrix]:
    groups = torch.arange(k, device=place.device) // group
    matrix = Int4Matrix(
        torch.randint(0, 16, (n, k), dtype=torch.uint8, device=place.device),
        torch.randint(0, 16, (n, k // group), dtype=torch.uint8, device=place.device),
        torch.rand(n, k // group, device=place.device) * 0.02 + 0.01,
        groups[torch.randperm(k, device=place.device)] if ordered else groups,
    )
    return kernels.matrix([matrix]), matrix


def _float8(place: Place, kernels: WeightKernels, n: int, k: int) -> tuple[Matrix, Float8Matrix]:
    values = torch.randn(n, k, device=place.device).to(torch.float8_e4m3fn)
    scales = torch.rand(n, 1, device=place.device) * 0.01 + 0.001
    matrix = Float8Matrix(values, scales, torch.zeros(k, dtype=torch.int64, device=place.device))
    return kernels.matrix([matrix]), matrix


def _product_error(place: Place, found: Matrix, matrix: Int4Matrix | Float8Matrix, rounds: bool = False) -> float:
    """The largest over numbers of rows on both sides of FEW_ROWS. rounds: inputs are rounded to float8 on the way."""
    weights = matrix.dequantized()
    worst = 0.0
    for rows in (1, 17, FEW_ROWS, FEW_ROWS + 1, 700):
        x = torch.randn(rows, weights.shape[1], device=place.device).bfloat16()
        seen = x.float()
        if rounds:
            largest = seen.abs().amax(1, keepdim=True)
            seen = (seen / (largest / 448)).to(torch.float8_e4m3fn).float() * (largest / 448)
        expected = (seen.double() @ weights.double().T).float()
        worst = max(worst, float((linear(x, found).float() - expected).norm() / expected.norm()))
    return worst


def _rows_are_alone(place: Place, found: Matrix, k: int) -> bool:
    """Whether a row's product is the same, to the bit, wherever it stands among as many others."""
    x = torch.randn(FEW_ROWS, k, device=place.device).bfloat16()
    return torch.equal(linear(x.roll(7, 0), found), linear(x, found).roll(7, 0))


def _times(place: Place, kernels: WeightKernels) -> dict[str, float]:
    """Seconds of a product with an int4 matrix over those with a bfloat16 one, by the number of rows."""
    n, k = (48, 128) if place.rehearsal else (28_672, 4096)
    found, matrix = _int4(place, kernels, n, k, 128, False)
    weights = matrix.dequantized().bfloat16()
    found_times = {}
    for rows in (1, 16, 64, FEW_ROWS, FEW_ROWS + 1, 2048):
        x = torch.randn(rows, k, device=place.device).bfloat16()
        times = [
            seconds_of(place, lambda x=x: linear(x, found), 20),
            seconds_of(place, lambda x=x: F.linear(x, weights), 20),
        ]
        found_times[str(rows)] = times[0] / times[1]
    return found_times


def _drawn_part(place: Place, kernels: WeightKernels, part: Any, names: Sequence[str]) -> Any:
    """A part of a layer with other matrices of those names."""
    return replace(part, **{name: _drawn(place, kernels, getattr(part, name)) for name in names})


def _drawn(place: Place, kernels: WeightKernels, like: Tensor) -> Matrix:
    """An int4 matrix of the size of another, of which its weights are not."""
    n, k = like.shape
    groups = torch.arange(k, device=place.device) // GROUP
    ones = torch.ones(n, k // GROUP, device=place.device)
    values = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=place.device)
    scales = ones * (0.2 * k**-0.5)  # so that activations stay finite
    found = kernels.matrix([Int4Matrix(values, (ones * 8).to(torch.uint8), scales, groups)])
    assert isinstance(found, Int4Linear)
    return found
