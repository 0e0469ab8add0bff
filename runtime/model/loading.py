"""Builds a `Decoder` from a checkpoint: every tensor is accounted for before any is read, then read once into place."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError, UnsupportedModel
from ..ranks import ALONE, Ranks
from ..weights.checkpoint import Checkpoint, GGUFCheckpoint, open_checkpoint
from ..weights.quantized import QuantizedMatrix
from ..weights.quantized_checkpoint import QuantizedCheckpoint
from .config import ModelConfig
from .decoder import Decoder
from .families.family import Family, TensorSpec
from .families.registry import family_of
from .layers import DecoderLayer, rope_frequencies
from .linear import Matrix
from .quantized_linear import WeightKernels
from .read_config import config_from_gguf, config_from_hf
from .shard import Shard

ROPE_FACTORS = "rope_freqs.weight"
ALIGN_BYTES = 64
HEAD = "lm_head.weight"
CPU = torch.device("cpu")
READERS = 4  # threads; dequantizing releases the interpreter's lock for most of its time


def load_model(
    path: Path | str,
    dtype: torch.dtype,
    device: torch.device = CPU,
    ranks: Ranks = ALONE,
    *,
    kernels: WeightKernels | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Decoder:
    """The model at `path` (a `.gguf` file or a Hugging Face directory), its weights converted to `dtype`, on `device`.

    ranks: who shares it; only this rank's part is read. kernels: compute with the quantized matrices of a directory,
    which then stay quantized; without them all are dequantized. progress: takes a sentence on quantized weights.
    Raises ModelError naming the tensor that is missing, unexpected or of the wrong shape, and UnsupportedModel where
    there are too many ranks, or the kernels lack a matrix.
    """
    checkpoint = open_checkpoint(path)
    config = config_of(checkpoint, path)
    family = family_of(config.architecture)
    shard = Shard.of(config, ranks.rank, ranks.size)
    specs = zip(checked_specs(checkpoint, family, config), family.tensors(shard.config), strict=True)
    groups: dict[str, list[_Piece]] = {}
    for piece in (_Piece(*both, shard) for both in specs):
        groups.setdefault(piece.own.part, []).append(piece)
    quantized: dict[str, Matrix] = {}
    if isinstance(checkpoint, QuantizedCheckpoint):
        if ranks.leads:
            progress(what_becomes_of(checkpoint, dtype, device, kept=kernels is not None))
        if kernels is not None:
            quantized = _keep_quantized(checkpoint, groups, dtype, device, kernels)
    parts = _read_parts(checkpoint, family, groups, dtype)
    factors = checkpoint.read(ROPE_FACTORS) if config.rope.scaling == "factors" else None
    frequencies = rope_frequencies(config.rope, config.head_dim, factors)
    if device.type != "cpu":
        parts = {name: part.to(device) for name, part in parts.items()}
    return _assemble(config, parts, quantized, frequencies.to(device), ranks)


@dataclass(frozen=True)
class _Piece:
    """What a rank reads of one tensor: it as the checkpoint has it, and as a model of the rank's sizes would."""

    whole: TensorSpec
    own: TensorSpec
    shard: Shard

    @property
    def is_whole(self) -> bool:
        return self.whole.shape == self.own.shape

    @property
    def rows(self) -> range:
        return self.shard.span(self.whole.rows) if self.whole.rows else range(self.whole.shape[0])

    @property
    def columns(self) -> range:
        return self.shard.span(self.whole.columns) if self.whole.columns else range(self.whole.shape[-1])


def config_of(checkpoint: Checkpoint, path: Path | str) -> ModelConfig:
    """What the checkpoint opened from `path` says about its model."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return config_from_gguf(checkpoint.file)
    return config_from_hf(Path(path))


def _name(checkpoint: Checkpoint, spec: TensorSpec) -> str:
    return spec.gguf if isinstance(checkpoint, GGUFCheckpoint) else spec.hf


def checked_specs(checkpoint: Checkpoint, family: Family, config: ModelConfig) -> list[TensorSpec]:
    """All tensors wanted. Stops at the first that is missing, so that absurd sizes in a config cost nothing."""
    left = set(checkpoint.names())
    specs: list[TensorSpec] = []
    for spec in family.tensors(config):
        name = _name(checkpoint, spec)
        if name not in left:
            raise ModelError(f"{checkpoint.source} lacks the tensor {name!r}")
        _check_shape(checkpoint, name, spec.shape)
        left.remove(name)
        specs.append(spec)
    if config.rope.scaling == "factors":
        _check_shape(checkpoint, ROPE_FACTORS, (config.head_dim // 2,))
        left.remove(ROPE_FACTORS)
    left -= _redundant(checkpoint, config, left)
    if left:
        raise UnsupportedModel(
            f"{checkpoint.source} holds the unexpected tensor {min(left)!r} ({len(left)} in all); "
            f"the {config.architecture} model here has no place for it"
        )
    return specs


def _check_shape(checkpoint: Checkpoint, name: str, expected: tuple[int, ...]) -> None:
    shape = checkpoint.shape(name)
    if shape != expected:
        raise ModelError(f"{checkpoint.source}: the tensor {name!r} has shape {shape}, expected {expected}")


def _redundant(checkpoint: Checkpoint, config: ModelConfig, left: set[str]) -> set[str]:
    """Tensors that repeat what is known: a tied head, the rotary frequencies that old exports kept as buffers, and
    biases of nothing."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return set()
    redundant = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.layers)}
    if isinstance(checkpoint, QuantizedCheckpoint):
        redundant |= checkpoint.empty_biases(left)
    return redundant | ({HEAD} if config.tied_head else set())


def _keep_quantized(
    checkpoint: QuantizedCheckpoint,
    groups: dict[str, list[_Piece]],
    dtype: torch.dtype,
    device: torch.device,
    kernels: WeightKernels,
) -> dict[str, Matrix]:
    """Takes the parts that have quantized matrices out of `groups`, and reads this rank's pieces of them."""
    names = set(checkpoint.matrices)
    kept = [part for part, group in groups.items() if part != "embed" and any(each.whole.hf in names for each in group)]

    def read(part: str) -> Matrix:
        blocks: list[QuantizedMatrix | Tensor] = []
        for piece in taken[part]:
            if piece.whole.hf in names:
                blocks.append(checkpoint.matrix(piece.whole.hf, piece.rows, device).part(piece.columns))
            else:
                plain = torch.empty(piece.own.shape, dtype=dtype)
                _fill(checkpoint, piece, plain)
                blocks.append(plain.to(device))
        try:
            return kernels.matrix(blocks)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{checkpoint.source}: {taken[part][0].whole.hf!r}: {error}") from None

    taken = {part: groups.pop(part) for part in kept}
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(kept, pool.map(read, kept), strict=True))


def what_becomes_of(
    checkpoint: QuantizedCheckpoint, dtype: torch.dtype, device: torch.device = CPU, *, kept: bool = False
) -> str:
    """A sentence for the user on a directory's quantized weights: whether they stay so, and what they take if not."""
    if kept:
        return f"weights quantized by {checkpoint.scheme} stay quantized"
    size = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()) * dtype.itemsize
    why = "" if device.type == "cpu" else ", as there is no kernel for them"
    return (
        f"weights quantized by {checkpoint.scheme} are dequantized to {str(dtype).removeprefix('torch.')}{why}: "
        f"{size / 2**30:.2f} GiB in memory, {checkpoint.nbytes / 2**30:.2f} GiB on disk"
    )


def _read_parts(
    checkpoint: Checkpoint, family: Family, groups: dict[str, list[_Piece]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Reads this rank's piece of every tensor to its place in its part."""
    shapes = {
        part: (sum(piece.own.shape[0] for piece in group), *group[0].own.shape[1:]) for part, group in groups.items()
    }
    parts = _allocate(shapes, dtype)
    is_gguf = isinstance(checkpoint, GGUFCheckpoint)
    unpair = is_gguf and family.gguf_pairs_rope

    def read(group: list[_Piece]) -> None:
        for piece in group:
            spec = piece.own
            place = parts[spec.part][spec.row : spec.row + spec.shape[0]]
            if unpair and spec.rope_heads:
                rows = torch.empty(spec.shape)
                _fill(checkpoint, piece, rows)
                place.copy_(_unpaired(rows, spec.rope_heads))
            elif is_gguf and spec.gguf_adds_one:
                rows = torch.empty(spec.shape)
                _fill(checkpoint, piece, rows)
                place.copy_(rows - 1)
            else:
                _fill(checkpoint, piece, place)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, groups.values()))
    return parts


def _fill(checkpoint: Checkpoint, piece: _Piece, out: Tensor) -> None:
    name = _name(checkpoint, piece.whole)
    if piece.is_whole:
        checkpoint.read_into(name, out)
    else:
        checkpoint.read_part(name, out, piece.rows, piece.columns)


def _allocate(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Uninitialized tensors in one block of memory, which numpy asks the system to back with huge pages.

    Compared with a tensor each, that saves most page faults: half of the time of loading.
    """
    align = ALIGN_BYTES // dtype.itemsize
    starts: dict[str, int] = {}
    total = 0
    for part, shape in shapes.items():
        starts[part] = total
        total += -(-math.prod(shape) // align) * align
    block = torch.from_numpy(np.empty(total * dtype.itemsize, np.uint8)).view(dtype)
    return {part: block[starts[part] :][: math.prod(shape)].view(shape) for part, shape in shapes.items()}


def _unpaired(rows: Tensor, heads: int) -> Tensor:
    """Rows of each head reordered from (x0, y0, x1, y1, …) to (x0, x1, …, y0, y1, …)."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


def _assemble(
    config: ModelConfig, parts: dict[str, Tensor], quantized: dict[str, Matrix], frequencies: Tensor, ranks: Ranks
) -> Decoder:
    matrices = parts | quantized
    layers = [
        DecoderLayer(
            attn_norm=parts[f"layers.{i}.attn_norm"],
            qkv=matrices[f"layers.{i}.qkv"],
            qkv_bias=parts.get(f"layers.{i}.qkv_bias"),
            out=matrices[f"layers.{i}.out"],
            mlp_norm=parts[f"layers.{i}.mlp_norm"],
            gate_up=matrices[f"layers.{i}.gate_up"],
            down=matrices[f"layers.{i}.down"],
            attn_post_norm=parts.get(f"layers.{i}.attn_post_norm"),
            mlp_post_norm=parts.get(f"layers.{i}.mlp_post_norm"),
            q_norm=parts.get(f"layers.{i}.q_norm"),
            k_norm=parts.get(f"layers.{i}.k_norm"),
        )
        for i in range(config.layers)
    ]
    embed = parts["embed"]
    local = None
    if config.local_rope is not None:
        local = rope_frequencies(config.local_rope, config.head_dim, None).to(frequencies.device)
    return Decoder(config, embed, layers, parts["norm"], matrices.get("head", embed), frequencies, ranks, local)
