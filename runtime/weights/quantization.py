"""What config.json says of how a checkpoint's matrices are quantized. This module must not import torch.

Checked is what changes the meaning of the tensors; fields that tell how the weights were found (damping, the data,
which kernel was to run them) are passed over. Which matrices are quantized, the tensors themselves say.

Formats: AutoGPTQ's and GPTQModel's `gptq` (arXiv:2210.17323), AutoAWQ's `awq` (arXiv:2306.00978), the `fp8` of
DeepSeek-V3 (arXiv:2412.19437) and of AutoFP8, and `compressed-tensors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError, UnsupportedModel
from ..fields import Fields

GROUP_SIZES = (32, 64, 128, -1)
BLOCK = 128  # rows and columns that share a scale of block-wise fp8
WHERE = "config.json's quantization_config"


@dataclass(frozen=True)
class Scheme:
    """method: as `quant_method` names it. skipped: modules that are not quantized: names, parts of them between dots,
    or regular expressions after "re:"."""

    method: str
    skipped: tuple[str, ...]

    def skips(self, module: str) -> bool:
        """Whether a module (a tensor's name without ".weight") is among `skipped`."""
        for entry in self.skipped:
            if entry.startswith("re:"):
                if re.match(entry[3:], module):
                    return True
            elif f".{entry}." in f".{module}.":
                return True
        return False


@dataclass(frozen=True)
class Int4Scheme(Scheme):
    """Four bits a weight, whose value is (q - zero) * scale.

    layout: "gptq", "awq" or "packed" (that of compressed-tensors), see `quantized`.
    group_size: input columns that share a scale and a zero; -1 for all of them.
    ordered: whether columns may be in any group, which a tensor then names.
    has_zeros: whether zeros are stored; else they are 8. zeros_less_one: they are stored with 1 taken off.
    """

    layout: str
    group_size: int
    ordered: bool
    has_zeros: bool = True
    zeros_less_one: bool = False

    def __str__(self) -> str:
        groups = "a scale for each row" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"{self.method} (4 bits, {groups})"


@dataclass(frozen=True)
class Float8Scheme(Scheme):
    """float8_e4m3fn, whose value is q * scale.

    scales: the tensor after the module's name that holds the scales: one, or one for each of
    per: "tensor", "channel" (a row), or "block" (BLOCK rows by BLOCK columns).
    activations: whether a matrix's inputs are to be rounded to float8 too, with a scale of their own for each token.
    """

    scales: tuple[str, ...]
    per: str
    activations: bool

    def __str__(self) -> str:
        return f"{self.method} (float8, a scale for each {self.per})"


def scheme_of(directory: Path) -> Scheme | None:
    """That of a Hugging Face directory; None where its config.json names none, or cannot be read (others say so)."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return read_scheme(config) if isinstance(config, dict) else None


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme that a config.json names, None where the weights are plain. Raises ModelError or UnsupportedModel."""
    data = config.get("quantization_config")
    if data is None:
        data = config.get("compression_config")  # what compressed-tensors called it at first
    if data is None:
        return None
    method = data.get("quant_method") if isinstance(data, dict) else data
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UnsupportedModel(
            f"config.json: weights quantized by {method!r} are not supported; "
            f"those by {', '.join(READERS)} are, and GGUF files"
        )
    return reader(Fields(data, WHERE))


def _gptq(fields: Fields) -> Scheme:
    fields.one_of("bits", 4)
    fields.require("is_marlin_format", False)
    fields.require("pack_dtype", "int32")
    fields.refuse("dynamic", "each matrix must be quantized in the same way")
    own_name = "checkpoint_format" if fields.data.get("checkpoint_format") is not None else "format"
    version = fields.one_of(own_name, "gptq", "gptq_v2", default="gptq")
    return Int4Scheme(
        method="gptq",
        skipped=_names(fields, "modules_to_not_convert"),
        layout="gptq",
        group_size=fields.one_of("group_size", *GROUP_SIZES),
        ordered=fields.one_of("desc_act", True, False, default=False),
        zeros_less_one=version == "gptq",
    )


def _awq(fields: Fields) -> Scheme:
    fields.one_of("bits", 4)
    fields.one_of("zero_point", True, default=True)
    for name in ("version", "format"):
        fields.require(name, "gemm", "GEMM")
    return Int4Scheme(
        method="awq",
        skipped=_names(fields, "modules_to_not_convert"),
        layout="awq",
        group_size=fields.one_of("group_size", *GROUP_SIZES),
        ordered=False,
    )


def _fp8(fields: Fields) -> Scheme:
    fields.require("fmt", "e4m3")
    fields.require("scale_fmt", "float")
    fields.one_of("activation_scheme", "dynamic", default="dynamic")
    fields.refuse("kv_cache_scheme", "keys and values are kept as --kv-dtype says")
    fields.refuse("modules_to_convert", "only linear layers may be quantized")
    block = fields.data.get("weight_block_size")
    if block not in (None, [BLOCK, BLOCK]):
        raise UnsupportedModel(f"{WHERE}: weight_block_size {block!r} is not supported; only [128, 128] or null is")
    return Float8Scheme(
        method="fp8",
        skipped=_names(fields, "modules_to_not_convert") + _names(fields, "ignored_layers"),
        scales=("weight_scale_inv",) if block else ("weight_scale", "weight_scale_inv"),
        per="block" if block else "tensor",
        activations=True,
    )


def _compressed_tensors(fields: Fields) -> Scheme:
    fields.refuse("kv_cache_scheme", "keys and values are kept as --kv-dtype says")
    fields.refuse("transform_config", "weights must not be transformed")
    if fields.data.get("sparsity_config"):
        fields.inner("sparsity_config").require("format", "dense")
    groups = fields.inner("config_groups")
    if len(groups.data) != 1:
        raise UnsupportedModel(f"{WHERE}: config_groups has {len(groups.data)} groups; only one is supported")
    group = groups.inner(next(iter(groups.data)))
    group.refuse("output_activations", "outputs are not quantized")
    weights = group.inner("weights")
    weights.require("dynamic", False)
    skipped = _names(fields, "ignore")
    layout = fields.one_of("format", "float-quantized", "pack-quantized")
    group.require("format", layout)
    if layout == "float-quantized":
        weights.one_of("num_bits", 8)
        weights.one_of("type", "float")
        weights.require("symmetric", True)
        strategy = weights.one_of("strategy", "tensor", "channel")
        return Float8Scheme("compressed-tensors", skipped, ("weight_scale",), strategy, _rounds_inputs(group))
    weights.one_of("num_bits", 4)
    weights.one_of("type", "int")
    group.refuse("input_activations", "with weights of 4 bits, inputs are not quantized")
    by_row = weights.one_of("strategy", "group", "channel") == "channel"
    order = weights.one_of("actorder", "group", "dynamic", "weight", "static", True, False, default=False)
    return Int4Scheme(
        method="compressed-tensors",
        skipped=skipped,
        layout="packed",
        group_size=-1 if by_row else weights.one_of("group_size", *GROUP_SIZES),
        ordered=order in ("group", "dynamic", True),
        has_zeros=not weights.one_of("symmetric", True, False, default=True),
    )


def _rounds_inputs(group: Fields) -> bool:
    """Whether a group of compressed-tensors quantizes inputs, which must then be found out for each token."""
    if group.data.get("input_activations") is None:
        return False
    inputs = group.inner("input_activations")
    inputs.one_of("num_bits", 8)
    inputs.one_of("type", "float")
    inputs.one_of("dynamic", True)
    inputs.one_of("strategy", "token", "tensor")
    return True


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise fields.invalid(key, "a list of names is needed")
    for name in value:
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except re.error as error:
            raise ModelError(f"{fields.source}: {key} has {name!r}, which is no regular expression: {error}") from error
    return tuple(value)


READERS: dict[str, Callable[[Fields], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
}
