"""Packs a checkpoint's weights for the kernels. Which tensors there must be, and where they go, the families say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..errors import UnsupportedModel
from ..model.config import ModelConfig
from ..model.families.family import Family
from ..model.families.registry import family_of
from ..model.layers.rotary import rope_frequencies
from ..model.loading import ROPE_FACTORS, checked_specs, config_of, what_becomes_of
from ..model.tensors import TensorSpec
from ..weights.checkpoint import Checkpoint
from ..weights.gguf_checkpoint import GGUFCheckpoint
from ..weights.loading import open_checkpoint
from ..weights.quantized_checkpoint import QuantizedCheckpoint
from .bindings import Library
from .decoder import LayerWeights, NotForKernels, Weights, check_model
from .packing import PackedMatrix, Packer, unpaired_order
from .stored import quantized, stored_matrix

QUANTIZATIONS = {"q8_0": "Q8_0", "q4_0": "Q4_0"}
PARTS = {"embed", "attn_norm", "qkv", "qkv_bias", "out", "mlp_norm", "gate_up", "down", "norm", "head"}


def load_weights(
    path: Path | str,
    library: Library,
    threads: int,
    quantize: str = "",
    progress: Callable[[str], None] = lambda _: None,
    *,
    max_context: int = 0,
) -> tuple[ModelConfig, Weights]:
    """The model at `path` (a `.gguf` file or a Hugging Face directory), its matrices in the types that are stored.

    Those that a directory has quantized become float32. quantize: "q8_0" or "q4_0" makes plain matrices of that type
    first, and those; "" leaves them. progress: takes a sentence on quantized weights.
    max_context: of the sequences to come; 0 is the model's own. The configuration is that of a model for these.
    Raises ModelError or UnsupportedModel; the latter also where there is nothing left to quantize.
    """
    if quantize and quantize not in QUANTIZATIONS:
        raise UnsupportedModel(f"quantize {quantize!r} is not supported; there are {', '.join(QUANTIZATIONS)}")
    checkpoint = open_checkpoint(path)
    config = config_of(checkpoint, path).within(max_context)
    check_model(config)
    family = family_of(config.architecture)
    specs = checked_specs(checkpoint, family, config)
    unknown = {name for _, name in (spec.layer_and_name for spec in specs)} - PARTS
    if unknown:
        raise NotForKernels(f"the kernels have no place for {min(unknown)}, which {config.architecture} models have")
    factors = checkpoint.read(ROPE_FACTORS) if config.rope.scaling == "factors" else None
    frequencies = rope_frequencies(config.rope, config.head_dim, factors).contiguous().numpy()
    if isinstance(checkpoint, QuantizedCheckpoint):
        then = f", then quantized to {quantize}" if quantize else ""
        progress(what_becomes_of(checkpoint, torch.float32) + then)
    packer = Packer(library, library.workspace(threads))
    reader = _WeightReader(checkpoint, family, packer, QUANTIZATIONS.get(quantize, ""))
    weights = reader.read(config, specs, frequencies)
    if quantize and not reader.quantized:
        raise UnsupportedModel(f"quantize {quantize} has nothing to do: every matrix of {path} is quantized already")
    return config, weights


class _WeightReader:
    """Reads the tensors of one checkpoint, each into its own place."""

    def __init__(self, checkpoint: Checkpoint, family: Family, packer: Packer, quantize: str) -> None:
        self._checkpoint = checkpoint
        self._is_gguf = isinstance(checkpoint, GGUFCheckpoint)
        self._unpairs = self._is_gguf and family.gguf_pairs_rope
        self._packer = packer
        self._quantize = quantize
        self.quantized = 0  # matrices that this reader quantized

    def read(self, config: ModelConfig, specs: list[TensorSpec], frequencies: np.ndarray) -> Weights:
        parts: dict[str, list[TensorSpec]] = {}
        for spec in specs:
            parts.setdefault(spec.part, []).append(spec)
        layers = [self._layer(parts, f"layers.{i}") for i in range(config.layers)]
        embed = self._matrix(parts["embed"][0])
        head = self._matrix(parts["head"][0]) if "head" in parts else embed
        return Weights(layers, embed, head, self._vector(parts["norm"]), frequencies)

    def _layer(self, parts: dict[str, list[TensorSpec]], layer: str) -> LayerWeights:
        q, k, v = map(self._matrix, parts[f"{layer}.qkv"])
        gate, up = map(self._matrix, parts[f"{layer}.gate_up"])
        bias = parts.get(f"{layer}.qkv_bias")
        return LayerWeights(
            q=q,
            k=k,
            v=v,
            out=self._matrix(parts[f"{layer}.out"][0]),
            gate=gate,
            up=up,
            down=self._matrix(parts[f"{layer}.down"][0]),
            attn_norm=self._vector(parts[f"{layer}.attn_norm"]),
            mlp_norm=self._vector(parts[f"{layer}.mlp_norm"]),
            qkv_bias=None if bias is None else self._vector(bias),
        )

    def _matrix(self, spec: TensorSpec) -> PackedMatrix:
        source = spec.source(is_gguf=self._is_gguf)
        matrix = stored_matrix(self._checkpoint, source.name, range(source.start, source.start + spec.shape[0]))
        if self._quantize and matrix.type in ("F32", "F16", "BF16"):
            try:
                matrix = quantized(matrix, self._quantize)
            except ValueError as error:
                raise UnsupportedModel(f"{source.name} cannot be quantized: {error}") from None
            self.quantized += 1
        order = unpaired_order(matrix.n, spec.rope_dim) if self._unpairs and spec.rope_dim else None
        return self._packer.pack(matrix.type, matrix.data, matrix.k, order)

    def _vector(self, specs: list[TensorSpec]) -> np.ndarray:
        pieces = []
        for spec in specs:
            source = spec.source(is_gguf=self._is_gguf)
            values = self._checkpoint.read(source.name).numpy()[source.start :][: spec.shape[0]]
            unpair = self._unpairs and spec.rope_dim
            pieces.append(values[unpaired_order(len(values), spec.rope_dim)] if unpair else values)
        return np.ascontiguousarray(np.concatenate(pieces), np.float32)
