"""Quantized directories on the CPU: what is computed is what transformers computes with the dequantized weights; what
is wrong in them is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packers import FORMATS, Tensors, gptq, write

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.model.layers.feed_forward import GatedMLP
from sapwood.runtime.model.layers.linear import Matrix
from sapwood.runtime.model.loading import load_model
from sapwood.runtime.wanted import Wanted
from sapwood.runtime.weights.loading import open_checkpoint
from sapwood.runtime.weights.quantized_checkpoint import PIECE_ELEMENTS, QuantizedCheckpoint
from tests.runtime.executors import executor_of

Saved = Callable[..., tuple[Path, Any]]
IDS = np.random.default_rng(3).integers(0, 96, 150).tolist()
Q = "model.layers.1.self_attn.q_proj"


def scores(driver: Any, ids: list[int]) -> np.ndarray:
    driver.open(0, ids, wanted=Wanted("logprobs", 1))
    return np.array([value for run in driver.prefill(0, ids).scored for value in run.logprobs])


def plain(matrix: Matrix) -> torch.Tensor:
    assert isinstance(matrix, torch.Tensor)
    return matrix


def feed_forward(path: Path, layer: int) -> GatedMLP:
    found = load_model(path, torch.float32).layers[layer].feed_forward
    assert isinstance(found, GatedMLP)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_log_probabilities_are_those_of_the_dequantized_weights(
    saved: Saved, drive: Callable[..., Any], expected_logprobs: Callable[..., np.ndarray], name: str
) -> None:
    path, model = saved(name)
    found = scores(drive(path, kv_tokens=512), IDS)
    np.testing.assert_allclose(found, expected_logprobs(model, IDS), atol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8 blocks"])
def test_qwen2_has_its_biases(
    saved: Saved, drive: Callable[..., Any], expected_logprobs: Callable[..., np.ndarray], name: str
) -> None:
    path, model = saved(name, "qwen2")
    np.testing.assert_allclose(scores(drive(path, kv_tokens=512), IDS), expected_logprobs(model, IDS), atol=1e-4)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_exact_and_rounded_once(saved: Saved, name: str) -> None:
    path, model = saved(name)
    for dtype in (torch.float32, torch.bfloat16):
        layer: Any = load_model(path, dtype).layers[0]
        assert torch.equal(plain(layer.feed_forward.down), model.model.layers[0].mlp.down_proj.weight.to(dtype))
        assert torch.equal(plain(layer.attention.qkv)[128:192], model.model.layers[0].self_attn.k_proj.weight.to(dtype))


@pytest.mark.parametrize("name", FORMATS)
def test_any_rows_and_columns_can_be_read(saved: Saved, name: str) -> None:
    path, model = saved(name)
    checkpoint = open_checkpoint(path)
    whole = model.model.layers[1].mlp.gate_proj.weight
    for rows, columns in ((range(3, 21), range(5, 90)), (range(7, 8), range(127, 128)), (range(16, 24), range(128))):
        out = torch.empty(len(rows), len(columns))
        checkpoint.read_part("model.layers.1.mlp.gate_proj.weight", out, rows, columns)
        assert torch.equal(out, whole[rows.start : rows.stop, columns.start : columns.stop])


def test_matrices_larger_than_a_piece_are_read_whole(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model = make_model(intermediate_size=PIECE_ELEMENTS // 128 + 160, num_hidden_layers=1)
    path = write(model, tmp_path / "model", FORMATS["awq"])
    mlp = model.model.layers[0].mlp
    expected = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    assert torch.equal(plain(feed_forward(path, 0).gate_up), expected)


def test_the_log_says_once_what_the_weights_take(saved: Saved) -> None:
    path, _ = saved("awq")
    for backend in ("cpu", "torch"):
        said: list[str] = []
        executor_of(path, max_running=1, kv_tokens=64, attention_backend=backend, progress=said.append)
        assert len(said) == 1
        assert "weights quantized by awq (4 bits, groups of 32) are dequantized to float32: 0.00 GiB" in said[0]


@pytest.mark.parametrize("name", ["gptq desc_act", "fp8"])
def test_they_may_be_quantized_again_for_the_kernels(saved: Saved, name: str) -> None:
    path, _ = saved(name)
    said: list[str] = []
    options: dict[str, Any] = {"max_running": 1, "kv_tokens": 64}
    again = executor_of(path, quantize="q8_0", progress=said.append, **options)
    assert "Q8_0" in again.runner.dtype
    assert again.runner.weight_bytes < 0.5 * executor_of(path, **options).runner.weight_bytes
    assert said[0].endswith("then quantized to q8_0")


@pytest.mark.parametrize("drive", ["torch"], indirect=True)
@pytest.mark.parametrize("name", ["gptq desc_act", "awq", "packed in another order", "fp8 blocks"])
def test_ranks_read_their_parts(
    saved: Saved,
    drive: Callable[..., Any],
    in_ranks: Callable[..., list[Any]],
    expected_logprobs: Callable[..., np.ndarray],
    name: str,
) -> None:
    """Three ranks: 256 columns are cut in the middle of groups, blocks and words."""
    path, model = saved(name)
    found = in_ranks(3, lambda ranks: scores(drive(path, kv_tokens=512, ranks=ranks), IDS))
    np.testing.assert_allclose(found[0], expected_logprobs(model, IDS), atol=1e-4)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def drop(part: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{Q}.{part}")


def put(part: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{Q}.{part}": make(tensors[f"{Q}.{part}"])})


def add(part: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{Q}.{part}": tensor})


WRONG: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scales": (
        "gptq",
        drop("scales"),
        rf"lacks the tensor '{Q}\.scales', which gptq \(4 bits, groups of 32\) needs",
    ),
    "no zeros": ("awq", drop("qzeros"), rf"lacks the tensor '{Q}\.qzeros'"),
    "no weights": ("gptq", drop("qweight"), rf"'{Q}\.g_idx' has type torch\.int32, and is no part of a matrix"),
    "no order": ("gptq desc_act", drop("g_idx"), rf"lacks the tensor '{Q}\.g_idx'"),
    "no order, packed": ("packed in another order", drop("weight_g_idx"), rf"lacks the tensor '{Q}\.weight_g_idx'"),
    "no zeros, packed": ("packed with zeros", drop("weight_zero_point"), "lacks the tensor .*weight_zero_point"),
    "no block scales": ("fp8 blocks", drop("weight_scale_inv"), rf"lacks the tensor '{Q}\.weight_scale_inv'"),
    "no scale": ("fp8", drop("weight_scale"), rf"lacks the tensor '{Q}\.weight_scale'"),
    "scales of another shape": (
        "gptq",
        put("scales", lambda t: t[:, :-8].contiguous()),
        rf"'{Q}\.scales' has shape \(4, 120\) and type torch\.float16, expected \(4, 128\)",
    ),
    "scales turned": ("awq", put("scales", lambda t: t.T.contiguous()), r"\(128, 4\) .*expected \(4, 128\)"),
    "scales of integers": ("awq", put("scales", lambda t: t.int()), "type torch.int32, expected"),
    "zeros of another shape": ("awq", put("qzeros", lambda t: t[:2].contiguous()), r"qzeros' has shape \(2, 16\)"),
    "order of another shape": (
        "gptq desc_act",
        put("g_idx", lambda t: t[:-1].contiguous()),
        r"g_idx' has shape \(127,\)",
    ),
    "order beyond": ("gptq desc_act", put("g_idx", lambda t: t + 1), "g_idx names groups from 1 to 4, and there are 4"),
    "order below": ("gptq desc_act", put("g_idx", lambda t: t - 1), "g_idx names groups from -1 to 2"),
    "weights of another type": ("gptq", put("qweight", lambda t: t.long()), "type torch.int64, expected"),
    "weights of a vector": ("gptq", put("qweight", lambda t: t[0].contiguous()), "and is no matrix"),
    "weights of another shape": (
        "gptq",
        lambda tensors: [
            put("qweight", lambda t: t[:-4].contiguous())(tensors),
            put("qzeros", lambda t: t[:-1].contiguous())(tensors),
            put("scales", lambda t: t[:-1].contiguous())(tensors),
            put("g_idx", lambda t: t[:-32].contiguous())(tensors),
        ],
        rf"'{Q}\.weight' has shape \(128, 96\), expected \(128, 128\)",
    ),
    "groups that do not divide": ("gptq", put("qweight", lambda t: t[:-1].contiguous()), "128 by 120, .*groups of 32"),
    "nothing": ("packed", put("weight_packed", lambda t: t[:0].contiguous()), "a matrix of 0 by 128"),
    "a shape of its own": ("packed", put("weight_shape", lambda t: t - 1), r"weight_shape says \(127, 127\)"),
    "blocks of another shape": ("fp8 blocks", put("weight_scale_inv", lambda t: t.repeat(2, 1)), r"has shape \(2, 1\)"),
    "one scale too many": ("fp8", put("weight_scale", lambda t: t.repeat(2)), r"\(2,\) .*expected \(\) or \(1,\)"),
    "a bias": ("gptq", add("bias", torch.ones(128)), rf"unexpected tensor '{Q}\.bias' \(1 in all\)"),
    "plain and quantized": ("awq", add("weight", torch.ones(128, 128)), "both"),
    "eight bits among four": (
        "awq",
        lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.float8_e4m3fn)}),
        r"'lm_head\.weight' has type torch\.float8_e4m3fn, and is no part of a matrix quantized by awq",
    ),
    "another format's": (
        "awq",
        add("weight_packed", torch.ones(4, 4).int()),
        "is no part of a matrix quantized by awq",
    ),
    "an unknown type": ("awq", add("qweight", torch.ones(4, 4).to(torch.int8)), "has type I8; supported types are F32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(make_model: Callable[..., Any], tmp_path: Path, case: str) -> None:
    name, edit, sentence = WRONG[case]
    path = write(make_model(), tmp_path / "model", FORMATS[name], edit)
    with pytest.raises(ModelError, match=sentence):
        load_model(path, torch.float32)


def test_a_module_that_is_said_to_be_plain_must_be(make_model: Callable[..., Any], tmp_path: Path) -> None:
    path = write(make_model(), tmp_path / "model", gptq(32, modules_to_not_convert=["self_attn.q_proj"]))
    with pytest.raises(
        ModelError, match=r"'model\.layers\.0\.self_attn\.q_proj' is quantized, which config\.json says"
    ):
        load_model(path, torch.float32)


def test_what_is_not_converted_is_read_as_it_is(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model = make_model()
    form = gptq(32, modules_to_not_convert=["layers.1.mlp"])
    skipped = ("lm_head", *(f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")))
    path = write(model, tmp_path / "model", type(form)(form.config, form.pack, skipped))
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, QuantizedCheckpoint)
    assert len(list(checkpoint.matrices)) == 11
    assert torch.equal(plain(feed_forward(path, 1).down), model.model.layers[1].mlp.down_proj.weight)


def test_weights_of_several_files_are_found(make_model: Callable[..., Any], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make_model()
    path = write(model, tmp_path / "model", FORMATS["gptq"])
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[i::2]) for i in range(2)]  # a matrix's tensors are in both
    weight_map = {}
    for i, half in enumerate(halves):
        save_file(half, path / f"part-{i}.safetensors")
        weight_map |= dict.fromkeys(half, f"part-{i}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(plain(feed_forward(path, 1).down), model.model.layers[1].mlp.down_proj.weight)


def test_an_unknown_method_is_refused_before_the_weights_are_opened(tmp_path: Path, saved: Saved) -> None:
    config = json.loads((saved("gptq")[0] / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "hqq"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"quantized by 'hqq' are not supported; those by gptq, awq, fp8, comp"):
        executor_of(tmp_path, max_running=1)
