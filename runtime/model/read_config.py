"""Reads a `ModelConfig` from GGUF metadata or from config.json. This module must not import torch.

What a checkpoint asks for and the model here does not do is refused by name; nothing is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError, UnsupportedModel
from ..fields import Fields
from ..sampling.recommendation import of_generation_config, of_gguf
from ..weights.gguf import GGUFFile
from ..weights.quantization import read_scheme
from .config import ModelConfig, Rope
from .families.family import Family
from .families.registry import family_of
from .windows import FULL, SLIDING

# config.json's `rope_scaling` / `rope_parameters`: the keys that are understood.
ROPE_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
}
# GGUF `ARCH.*` keys that are understood, or that are known not to change what is computed here.
GGUF_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
}


def read_config(path: Path | str) -> ModelConfig:
    """The configuration of the checkpoint at `path`: a `.gguf` file or a directory with config.json."""
    path = Path(path)
    return config_from_hf(path) if path.is_dir() else config_from_gguf(GGUFFile(path))


# --- config.json ----------------------------------------------------------------------------------------------------


def config_from_hf(directory: Path) -> ModelConfig:
    """From a Hugging Face directory's config.json. Raises ModelError or UnsupportedModel."""
    path = directory / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    fields = Fields(data, "config.json")
    family = family_of(data.get("model_type"))
    _refuse_hf(fields, family)
    rope, local_rope = _hf_ropes(fields, family)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    return ModelConfig(
        architecture=family.name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads),
        rms_eps=fields.number("rms_norm_eps"),
        max_context=fields.integer("max_position_embeddings"),
        rope=rope,
        tied_head=family.tied_head if data.get("tie_word_embeddings") is None else data["tie_word_embeddings"] is True,
        eos_ids=_eos_ids(fields, "eos_token_id"),
        local_rope=local_rope,
        recommended=of_generation_config(_generation_config(directory)),
        **family.hf_own(fields),
    )


def _generation_config(directory: Path) -> dict[str, Any]:
    """The object in `generation_config.json`, a file that may be missing; a model is not refused for it."""
    try:
        data = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _refuse_hf(fields: Fields, family: Family) -> None:
    data = fields.data
    classes = data.get("architectures")
    if classes is not None and classes != [family.hf_class]:
        raise UnsupportedModel(f"config.json: the model class {classes!r} is not supported; {family.hf_class!r} is")
    fields.require("partial_rotary_factor", 1)
    for key, value in family.hf_required.items():
        fields.require(key, value)
    read_scheme(data)


def _hf_ropes(fields: Fields, family: Family) -> tuple[Rope, Rope | None]:
    """The positions of all layers, or of those without a window and of those with one."""
    scaling = fields.data.get("rope_parameters") or fields.data.get("rope_scaling") or {}
    theta = fields.number("rope_theta", family.rope_theta)
    if not family.local_theta:
        return _hf_rope(scaling, theta), None
    local: Any = {}
    if isinstance(scaling, dict) and scaling.keys() and scaling.keys() <= {FULL, SLIDING}:
        scaling, local = scaling.get(FULL) or {}, scaling.get(SLIDING) or {}
    return _hf_rope(scaling, theta), _hf_rope(local, fields.number("rope_local_base_freq", family.local_theta))


def _hf_rope(scaling: Any, theta: float) -> Rope:
    """theta: where the parameters have none."""
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedModel(f"config.json: rope parameters {scaling!r} are not supported")
    inner = Fields(scaling, "config.json's rope parameters")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModel(f"config.json: RoPE scaling {kind!r} is not supported; default, linear and llama3 are")
    unknown = sorted(set(scaling) - ROPE_KEYS)
    if unknown:
        raise UnsupportedModel(f"config.json: the rope parameters {', '.join(unknown)} are not supported")
    inner.require("partial_rotary_factor", 1)
    theta = inner.number("rope_theta", theta)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", inner.number("factor"))
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if high <= low:
        raise inner.invalid("high_freq_factor", f"it must be above low_freq_factor, {low}")
    return Rope(theta, "llama3", inner.number("factor"), low, high, inner.integer("original_max_position_embeddings"))


def _eos_ids(fields: Fields, key: str) -> tuple[int, ...]:
    value = fields.data.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token) is not int or token < 0 for token in ids):
        raise fields.invalid(key, "token ids are needed")
    return tuple(ids)


# --- GGUF -----------------------------------------------------------------------------------------------------------


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """From a GGUF file's metadata and tensor directory. Raises ModelError or UnsupportedModel."""
    data = file.metadata
    architecture = data.get("general.architecture")
    family = family_of(architecture)
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}
    fields = Fields(own, f"{file.path.name}: {architecture}")
    _refuse_gguf(fields, family, data, file.path.name)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path.name} lacks the tensor 'token_embd.weight'")
    heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    fields.require("attention.value_length", head_dim)
    fields.require("rope.dimension_count", head_dim)
    return ModelConfig(
        architecture=family.name,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        layers=fields.integer("block_count"),
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_context=fields.integer("context_length"),
        rope=_gguf_rope(fields, file),
        tied_head="output.weight" not in file.tensors,
        eos_ids=_eos_ids(Fields(data, file.path.name), "tokenizer.ggml.eos_token_id"),
        recommended=of_gguf(data),
        **family.gguf_own(fields),
    )


def _refuse_gguf(fields: Fields, family: Family, data: Mapping[str, Any], name: str) -> None:
    unknown = sorted(set(fields.data) - GGUF_KEYS - family.gguf_keys)
    if unknown:
        raise UnsupportedModel(f"{fields.source}: the parameters {', '.join(unknown)} are not supported")
    if "expert_count" not in family.gguf_keys:
        fields.require("expert_count", 0)
    fields.require("attention.causal", True)
    fields.require("tensor_data_layout", "Meta AI original pth")
    if data.get("split.count", 0) not in (0, 1):
        raise UnsupportedModel(f"{name} is one of {data['split.count']} parts; merge them into one GGUF file first")


def _gguf_rope(fields: Fields, file: GGUFFile) -> Rope:
    theta = fields.number("rope.freq_base", 10_000.0)
    kind = fields.data.get("rope.scaling.type", "none")
    if "rope.scale_linear" in fields.data:  # the older spelling
        kind, factor = "linear", fields.number("rope.scale_linear")
    else:
        factor = fields.number("rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{fields.source}: RoPE scaling {kind!r} is not supported; none and linear are")
    if "rope_freqs.weight" in file.tensors:  # llama3 scaling, worked out by the converter
        if kind == "linear":
            raise UnsupportedModel(f"{fields.source}: linear RoPE scaling together with rope_freqs.weight")
        return Rope(theta, "factors")
    return Rope(theta, "linear", factor) if kind == "linear" else Rope(theta)
