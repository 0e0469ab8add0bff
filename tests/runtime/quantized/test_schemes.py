"""What config.json says of quantized weights is understood, or refused by the name of the field."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from packers import FORMATS

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.weights.quantization import Float8Scheme, Int4Scheme, Scheme, read_scheme, scheme_of


def read(name: str, *changes: tuple[str, Any]) -> Scheme:
    """The scheme of one of FORMATS, with changes at paths of keys between dots; a value of ... removes the key."""
    config: dict[str, Any] = deepcopy(FORMATS[name].config)
    for path, value in changes:
        *outer, last = path.split(".")
        place = config
        for key in outer:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    scheme = read_scheme({"quantization_config": config})
    assert scheme is not None
    return scheme


GPTQ = {"method": "gptq", "skipped": (), "layout": "gptq", "group_size": 32, "ordered": False, "zeros_less_one": True}
PACKED = {"method": "compressed-tensors", "skipped": ("lm_head",), "layout": "packed", "group_size": 32}
UNDERSTOOD: dict[str, tuple[str, list[tuple[str, Any]], Scheme]] = {
    "gptq": ("gptq", [], Int4Scheme(**GPTQ)),
    "gptq of old": ("gptq", [("checkpoint_format", ...), ("desc_act", ...), ("sym", ...)], Int4Scheme(**GPTQ)),
    "gptq with all that is passed over": (
        "gptq",
        [("damp_percent", 0.01), ("static_groups", True), ("meta", {"a": 1}), ("is_marlin_format", False)],
        Int4Scheme(**GPTQ),
    ),
    "gptq v2": ("gptq", [("checkpoint_format", "gptq_v2")], Int4Scheme(**{**GPTQ, "zeros_less_one": False})),
    "gptq v2, newer": (
        "gptq",
        [("checkpoint_format", ...), ("format", "gptq_v2")],
        Int4Scheme(**{**GPTQ, "zeros_less_one": False}),
    ),
    "gptq desc_act": ("gptq", [("desc_act", True)], Int4Scheme(**{**GPTQ, "ordered": True})),
    "awq": ("awq", [("version", "GEMM")], Int4Scheme("awq", (), "awq", 32, ordered=False)),
    "fp8 blocks": ("fp8 blocks", [], Float8Scheme("fp8", ("lm_head",), ("weight_scale_inv",), "block", True)),
    "fp8": ("fp8", [], Float8Scheme("fp8", ("lm_head",), ("weight_scale", "weight_scale_inv"), "tensor", True)),
    "packed": ("packed", [], Int4Scheme(**PACKED, ordered=False, has_zeros=False)),
    "packed static": (
        "packed",
        [("config_groups.group_0.weights.actorder", "static")],
        Int4Scheme(**PACKED, ordered=False, has_zeros=False),
    ),
    "float-quantized": (
        "float-quantized channels",
        [("config_groups.group_0.input_activations.strategy", "tensor"), ("sparsity_config", {"format": "dense"})],
        Float8Scheme("compressed-tensors", ("lm_head",), ("weight_scale",), "channel", True),
    ),
    "weights only": (
        "float-quantized weights only",
        [],
        Float8Scheme("compressed-tensors", ("lm_head",), ("weight_scale",), "channel", False),
    ),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_what_is_understood(case: str) -> None:
    name, changes, scheme = UNDERSTOOD[case]
    assert read(name, *changes) == scheme


WEIGHTS, INPUTS = "config_groups.group_0.weights", "config_groups.group_0.input_activations"
CHANNELS = "float-quantized channels"
REFUSED: list[tuple[str, str, Any, str]] = [
    ("gptq", "quant_method", "bitsandbytes", "quantized by 'bitsandbytes' are not supported; those by gptq, awq, fp8"),
    ("gptq", "quant_method", ["gptq"], "are not supported"),
    ("gptq", "bits", 8, "quantization_config: bits 8 is not supported; only 4 is"),
    ("gptq", "bits", 3, "bits 3"),
    ("gptq", "group_size", 1024, "group_size 1024 is not supported; only 32 or 64 or 128 or -1 is"),
    ("gptq", "group_size", 10**30, "group_size 1000000000000000000000000000000 is not supported"),
    ("gptq", "group_size", [128], r"group_size \[128\]"),
    ("gptq", "checkpoint_format", "marlin", "checkpoint_format 'marlin' is not supported; only 'gptq' or 'gptq_v2' is"),
    ("gptq", "is_marlin_format", True, "is_marlin_format True"),
    ("gptq", "pack_dtype", "int16", "pack_dtype 'int16'"),
    ("gptq", "dynamic", {"-:.*": {}}, "dynamic .* is not supported: each matrix"),
    ("gptq", "desc_act", "yes", "desc_act 'yes'"),
    ("awq", "bits", 2, "bits 2"),
    ("awq", "version", "gemv", "version 'gemv' is not supported; only 'gemm' or 'GEMM' is"),
    ("awq", "format", "gemv_fast", "format 'gemv_fast'"),
    ("awq", "zero_point", False, "zero_point False"),
    ("fp8", "activation_scheme", "static", "activation_scheme 'static' is not supported; only 'dynamic' is"),
    ("fp8", "fmt", "e5m2", "fmt 'e5m2'"),
    ("fp8", "scale_fmt", "ue8m0", "scale_fmt 'ue8m0'"),
    (
        "fp8",
        "weight_block_size",
        [64, 128],
        r"weight_block_size \[64, 128\] is not supported; only \[128, 128\] or null",
    ),
    ("fp8", "kv_cache_scheme", "static", "kv_cache_scheme 'static'"),
    ("fp8", "modules_to_convert", ["embed_tokens"], "modules_to_convert"),
    (CHANNELS, "format", "int-quantized", "format 'int-quantized' is not supported; only 'float-quantized' or"),
    (CHANNELS, "kv_cache_scheme", {"num_bits": 8}, "kv_cache_scheme"),
    (CHANNELS, "transform_config", {"config_groups": {"u": {}}}, "transform_config"),
    (CHANNELS, "sparsity_config", {"format": "sparse-24-bitmask"}, "sparsity_config: format 'sparse-24-bitmask'"),
    (CHANNELS, "config_groups.group_1", {"weights": None}, "config_groups has 2 groups; only one is supported"),
    (CHANNELS, "config_groups.group_0.output_activations", {"num_bits": 8}, "output_activations"),
    (CHANNELS, f"{WEIGHTS}.num_bits", 4, "weights: num_bits 4 is not supported; only 8 is"),
    (CHANNELS, f"{WEIGHTS}.type", "int", "weights: type 'int'"),
    (CHANNELS, f"{WEIGHTS}.strategy", "block", "weights: strategy 'block'"),
    (CHANNELS, f"{WEIGHTS}.symmetric", False, "weights: symmetric False"),
    (CHANNELS, f"{INPUTS}.dynamic", False, "input_activations: dynamic False is not supported; only True is"),
    (CHANNELS, f"{INPUTS}.num_bits", 4, "input_activations: num_bits 4"),
    (CHANNELS, f"{INPUTS}.type", "int", "input_activations: type 'int'"),
    ("packed", f"{WEIGHTS}.num_bits", 8, "weights: num_bits 8"),
    ("packed", f"{WEIGHTS}.type", "float", "weights: type 'float'"),
    ("packed", f"{WEIGHTS}.strategy", "tensor_group", "strategy 'tensor_group'"),
    ("packed", f"{WEIGHTS}.group_size", 16, "group_size 16"),
    ("packed", f"{WEIGHTS}.actorder", "sideways", "actorder 'sideways'"),
    ("packed", f"{INPUTS}", {"num_bits": 8}, "with weights of 4 bits, inputs are not quantized"),
]


@pytest.mark.parametrize(("name", "key", "value", "sentence"), REFUSED)
def test_what_is_not_is_refused_by_name(name: str, key: str, value: Any, sentence: str) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        read(name, (key, value))


NONSENSE: list[tuple[str, str, Any, str]] = [
    ("gptq", "bits", ..., "quantization_config lacks 'bits'"),
    ("awq", "group_size", ..., "lacks 'group_size'"),
    ("gptq", "modules_to_not_convert", "lm_head", "modules_to_not_convert is 'lm_head'; a list of names is needed"),
    ("gptq", "modules_to_not_convert", [3], "a list of names is needed"),
    ("packed", "ignore", ["re:("], r"ignore has 're:\(', which is no regular expression"),
    ("packed", "format", ..., "lacks 'format'"),
    ("packed", "config_groups", ..., "lacks 'config_groups'"),
    ("packed", "config_groups", [1], "an object is needed"),
    ("packed", "config_groups.group_0", 3, "an object is needed"),
    ("packed", WEIGHTS, None, "lacks 'weights'"),
    ("packed", f"{WEIGHTS}.group_size", None, "lacks 'group_size'"),
]


@pytest.mark.parametrize(("name", "key", "value", "sentence"), NONSENSE)
def test_nonsense_is_refused_by_name(name: str, key: str, value: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        read(name, (key, value))


def test_plain_weights_have_no_scheme(tmp_path: Path) -> None:
    assert read_scheme({}) is read_scheme({"quantization_config": None}) is None
    assert scheme_of(tmp_path) is None
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert scheme_of(tmp_path) is None


def test_the_older_key_of_compressed_tensors() -> None:
    assert read_scheme({"compression_config": FORMATS["packed"].config}) == read("packed")


@pytest.mark.parametrize(
    ("entry", "skips"),
    [
        ("lm_head", ["lm_head"]),
        ("model.layers.1", ["model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj"]),
        ("mlp", ["model.layers.1.mlp.up_proj"]),
        ("q_proj", ["model.layers.1.self_attn.q_proj"]),
        ("re:.*q_proj", ["model.layers.1.self_attn.q_proj"]),
        ("head", []),
        ("layers.10", []),
    ],
)
def test_skipped_modules_are_whole_names(entry: str, skips: list[str]) -> None:
    modules = ["lm_head", "model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj"]
    scheme = read("gptq", ("modules_to_not_convert", [entry]))
    assert [module for module in modules if scheme.skips(module)] == skips


def test_the_front_reads_them_without_torch() -> None:
    code = "import sys, sapwood.runtime.weights.quantization; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
