"""Quantizes matrices as the published layouts have it, word by word; nothing here is shared with what reads them.

What comes out need not be near what went in: the tests compare with the dequantized weights. So zeros are drawn from
all that there are, which makes for every stored pattern.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
Pack = Callable[[np.ndarray, np.random.Generator], tuple[Tensors, np.ndarray]]


@dataclass(frozen=True)
class Format:
    """config: config.json's quantization_config. pack: float32 [n, k] -> its tensors by what follows the module's name,
    and float32 [n, k], the weights that they stand for."""

    config: dict[str, Any]
    pack: Pack
    skipped: tuple[str, ...] = ("lm_head",)
    sizes: dict[str, int] = field(default_factory=dict)


def words(features: np.ndarray) -> torch.Tensor:
    """int32 [..., m / 8] of [..., m]: eight values a word, the first in its lowest bits."""
    *rest, count = features.shape
    eights = features.astype(np.int64).reshape(*rest, count // 8, 8)
    sums = sum(eights[..., i] * 16**i for i in range(8))
    return signed(np.asarray(sums))


def signed(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((numbers % 2**32).astype(np.uint32).view(np.int32).copy())


def rounded(
    weight: np.ndarray, group_of: np.ndarray, random: np.random.Generator, scale_dtype: torch.dtype, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """values [n, k], zeros [n, groups], scales [n, groups] (exact in scale_dtype), weights [n, k]."""
    n, groups = len(weight), int(group_of.max()) + 1
    zeros = np.full((n, groups), 8) if symmetric else random.integers(0, 16, (n, groups))
    drawn = torch.from_numpy(random.uniform(0.02, 0.06, (n, groups)))
    scales = drawn.to(scale_dtype).float().numpy()
    values = np.clip(np.round(weight / scales[:, group_of]) + zeros[:, group_of], 0, 15).astype(np.int64)
    weights = (values - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]
    return values, zeros, scales, weights


def by_turns(k: int, group_size: int) -> np.ndarray:
    return np.arange(k) // (k if group_size == -1 else group_size)


def gptq(
    group_size: int,
    *,
    version: str | None = "gptq",
    desc_act: bool = False,
    sym: bool = False,
    g_idx: bool = True,
    bias: bool = False,
    **more: Any,
) -> Format:
    def pack(weight: np.ndarray, random: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        n, k = weight.shape
        group_of = by_turns(k, group_size)
        if desc_act:
            group_of = np.random.default_rng(k).permutation(group_of)  # the same for all that read the same inputs
        values, zeros, scales, weights = rounded(weight, group_of, random, torch.float16, sym)
        qzeros = words(zeros.T)
        if version != "gptq_v2":
            qzeros = signed(qzeros.numpy().astype(np.int64) - 0x11111111)
        tensors = {
            "qweight": words(values).T.contiguous(),
            "qzeros": qzeros,
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }
        if g_idx:
            tensors["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        if bias:
            tensors["bias"] = torch.zeros(n, dtype=torch.float16)
        return tensors, weights

    config = {"quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": desc_act, "sym": sym, **more}
    return Format(config if version is None else {**config, "checkpoint_format": version}, pack)


def awq(group_size: int) -> Format:
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def in_awq_order(features: np.ndarray) -> torch.Tensor:
        *rest, count = features.shape
        return words(features.reshape(*rest, count // 8, 8)[..., order].reshape(*rest, count))

    def pack(weight: np.ndarray, random: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        group_of = by_turns(weight.shape[1], group_size)
        values, zeros, scales, weights = rounded(weight, group_of, random, torch.float16, False)
        tensors = {
            "qweight": in_awq_order(values.T),
            "qzeros": in_awq_order(zeros.T),
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }
        return tensors, weights

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    return Format({**config, "modules_to_not_convert": None}, pack)


def compressed(format_name: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def packed(group_size: int, *, symmetric: bool = True, ordered: bool = False) -> Format:
    def pack(weight: np.ndarray, random: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        n, k = weight.shape
        group_of = by_turns(k, group_size)
        if ordered:
            group_of = np.random.default_rng(k + n).permutation(group_of)
        values, zeros, scales, weights = rounded(weight, group_of, random, torch.bfloat16, symmetric)
        tensors = {
            "weight_packed": words(values),
            "weight_scale": torch.from_numpy(scales).bfloat16(),
            "weight_shape": torch.tensor([n, k]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros.T).T.contiguous()
        if ordered:
            tensors["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        return tensors, weights

    by_row = group_size == -1
    weights: dict[str, Any] = {
        "num_bits": 4,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if by_row else "group",
        "group_size": None if by_row else group_size,
        "actorder": "group" if ordered else None,
        "dynamic": False,
    }
    return Format(compressed("pack-quantized", weights, None), pack)


def eight_bits(
    config: dict[str, Any], name: str, per: str, dtype: torch.dtype, shape: tuple[int, ...] = (1,), **sizes: int
) -> Format:
    def pack(weight: np.ndarray, random: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        n, k = weight.shape
        counts = {"tensor": (1, 1), "channel": (n, 1), "block": (-(-n // 128), -(-k // 128))}[per]
        scales = torch.from_numpy(random.uniform(0.0005, 0.003, counts)).to(dtype).float()
        wide = scales.numpy().repeat(-(-n // counts[0]) if per != "block" else 128, 0)[:n]
        wide = wide.repeat(k if per != "block" else 128, 1)[:, :k]
        values = torch.from_numpy((weight / wide).clip(-448, 448)).to(torch.float8_e4m3fn)
        stored = scales.to(dtype).reshape(shape if per == "tensor" else counts)
        return {"weight": values, name: stored}, values.float().numpy() * wide

    return Format(config, pack, sizes=sizes)


def fp8(block: bool, name: str = "weight_scale_inv", shape: tuple[int, ...] = ()) -> Format:
    config: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    config |= {"modules_to_not_convert": ["lm_head"], "weight_block_size": [128, 128] if block else None}
    sizes = {"intermediate_size": 208} if block else {}  # the last blocks are not whole
    return eight_bits(config, name, "block" if block else "tensor", torch.float32, shape, **sizes)


def float_quantized(per: str, inputs: bool = True) -> Format:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": per, "dynamic": False}
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    config = compressed("float-quantized", weights, activations if inputs else None)
    return eight_bits(config, "weight_scale", per, torch.bfloat16)


FORMATS = {
    "gptq": gptq(32),
    "gptq v2": gptq(64, version="gptq_v2"),
    "gptq symmetric": gptq(128, sym=True, version=None, bias=True),
    "gptq desc_act": gptq(32, desc_act=True),
    "gptq one group": gptq(-1),
    "gptq without g_idx": gptq(64, g_idx=False),
    "gptq head too": Format(gptq(64).config, gptq(64).pack, ("model.layers.1.self_attn.v_proj",)),
    "awq": awq(32),
    "awq 128": awq(128),
    "awq one group": awq(-1),
    "packed": packed(32),
    "packed with zeros": packed(64, symmetric=False),
    "packed channels": packed(-1),
    "packed in another order": packed(32, symmetric=False, ordered=True),
    "fp8 blocks": fp8(True),
    "fp8": fp8(False, "weight_scale", (1,)),
    "fp8 as transformers": fp8(False),
    "float-quantized tensors": float_quantized("tensor"),
    "float-quantized channels": float_quantized("channel"),
    "float-quantized weights only": float_quantized("channel", inputs=False),
}


def write(model: Any, path: Path, form: Format, edit: Callable[[Tensors], object] = lambda _: None) -> Path:
    """Saves a transformers model with its linear layers in that form, and gives the model the weights that they then
    have. edit: changes the tensors before they are saved."""
    random = np.random.default_rng(5)
    tensors: Tensors = {}
    for name, parameter in model.state_dict().items():
        module, _, part = name.rpartition(".")
        linear = parameter.ndim == 2 and part == "weight" and "embed" not in name
        if not linear or module in form.skipped:
            tensors[name] = parameter.clone()
            continue
        stored, weights = form.pack(parameter.float().numpy(), random)
        tensors |= {f"{module}.{one}": tensor.contiguous() for one, tensor in stored.items()}
        parameter.copy_(torch.from_numpy(weights))
    edit(tensors)
    path.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": form.config}))
    save_file(tensors, path / "model.safetensors")
    return path
