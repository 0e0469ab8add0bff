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
from ..execution.ranks import ALONE, Ranks
from ..weights.checkpoint import Checkpoint
from ..weights.gguf_checkpoint import GGUFCheckpoint
from ..weights.loading import open_checkpoint
from ..weights.quantized import QuantizedMatrix
from ..weights.quantized_checkpoint import QuantizedCheckpoint
from .config import ModelConfig
from .decoder import Decoder
from .families.family import Family
from .families.registry import family_of
from .layers.decoder_layer import DecoderLayer
from .layers.linear import Matrix
from .layers.norm import RMSNorm
from .layers.parameters import LayerParameters
from .layers.quantized_linear import WeightKernels
from .layers.rotary import rope_frequencies
from .parts import norm_named
from .read_config import config_from_gguf, config_from_hf
from .shard import Shard
from .tensors import RowsOf, TensorSpec

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
    groups: dict[str, list[_Piece]] = {}
    for spec in checked_specs(checkpoint, family, config):
        source = spec.source(is_gguf=isinstance(checkpoint, GGUFCheckpoint))
        groups.setdefault(spec.part, []).append(_Piece(spec, source, shard))
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
    return _assemble(family, shard, config, parts, quantized, frequencies.to(device), ranks)


@dataclass(frozen=True)
class _Piece:
    """What a rank reads for one spec: some rows and columns of what `source` has."""

    spec: TensorSpec
    source: RowsOf
    shard: Shard

    @property
    def rows(self) -> range:
        """Those of the checkpoint's tensor."""
        run, start = self.shard.span(self.spec.rows, self.spec.shape[0]), self.source.start
        return range(start + run.start, start + run.stop)

    @property
    def columns(self) -> range:
        return self.shard.span(self.spec.columns, self.spec.shape[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows),) if len(self.spec.shape) == 1 else (len(self.rows), len(self.columns))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the checkpoint's tensor."""
        return self.shape == self.source.shape


def config_of(checkpoint: Checkpoint, path: Path | str) -> ModelConfig:
    """What the checkpoint opened from `path` says about its model."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return config_from_gguf(checkpoint.file)
    return config_from_hf(Path(path))


def checked_specs(checkpoint: Checkpoint, family: Family, config: ModelConfig) -> list[TensorSpec]:
    """All tensors wanted. Stops at the first that is missing, so that absurd sizes in a config cost nothing."""
    names = set(checkpoint.names())
    left = set(names)
    specs: list[TensorSpec] = []
    for spec in family.tensors(config):
        source = spec.source(is_gguf=isinstance(checkpoint, GGUFCheckpoint))
        if source.name not in names:
            raise ModelError(f"{checkpoint.source} lacks the tensor {source.name!r}")
        _check_shape(checkpoint, source.name, source.shape)
        left.discard(source.name)
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
    kept = [
        part for part, group in groups.items() if part != "embed" and any(each.source.name in names for each in group)
    ]

    def read(part: str) -> Matrix:
        blocks: list[QuantizedMatrix | Tensor] = []
        for piece in taken[part]:
            if piece.source.name in names:
                blocks.append(checkpoint.matrix(piece.source.name, piece.rows, device).part(piece.columns))
            else:
                plain = torch.empty(piece.shape, dtype=dtype)
                _fill(checkpoint, piece, plain)
                blocks.append(plain.to(device))
        try:
            return kernels.matrix(blocks)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{checkpoint.source}: {taken[part][0].source.name!r}: {error}") from None

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
    shapes = {part: (sum(piece.shape[0] for piece in group), *group[0].shape[1:]) for part, group in groups.items()}
    parts = _allocate(shapes, dtype)
    is_gguf = isinstance(checkpoint, GGUFCheckpoint)
    unpair = is_gguf and family.gguf_pairs_rope

    def read(part: str) -> None:
        places = parts[part].split([piece.shape[0] for piece in groups[part]])
        for piece, place in zip(groups[part], places, strict=True):
            spec = piece.spec
            if (unpair and spec.rope_dim) or (is_gguf and spec.gguf_adds_one):
                rows = torch.empty(piece.shape)
                _fill(checkpoint, piece, rows)
                place.copy_(rows - 1 if spec.gguf_adds_one else _unpaired(rows, spec.rope_dim))
            else:
                _fill(checkpoint, piece, place)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, groups))
    return parts


def _fill(checkpoint: Checkpoint, piece: _Piece, out: Tensor) -> None:
    if piece.is_whole:
        checkpoint.read_into(piece.source.name, out)
    else:
        checkpoint.read_part(piece.source.name, out, piece.rows, piece.columns)


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


def _unpaired(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of each head reordered from (x0, y0, x1, y1, …) to (x0, x1, …, y0, y1, …)."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(rows.shape)


def _assemble(
    family: Family,
    shard: Shard,
    config: ModelConfig,
    parts: dict[str, Tensor],
    quantized: dict[str, Matrix],
    frequencies: Tensor,
    ranks: Ranks,
) -> Decoder:
    ends: dict[str, Matrix] = {}
    layers: list[dict[str, Matrix]] = [{} for _ in range(config.layers)]
    for spec in family.tensors(config):
        layer, name = spec.layer_and_name
        named = ends if layer is None else layers[layer]
        named[name] = quantized[spec.part] if spec.part in quantized else parts[spec.part]
    embed = parts["embed"]
    local = None
    if config.local_rope is not None:
        local = rope_frequencies(config.local_rope, config.head_dim, None).to(frequencies.device)
    return Decoder(
        config,
        embed,
        [_layer(family, LayerParameters(named), shard.config) for named in layers],
        RMSNorm(parts["norm"], config.rms_eps, config.norms_add_one),
        ends.get("head", embed),
        frequencies,
        ranks,
        local,
    )


def _layer(family: Family, weights: LayerParameters, config: ModelConfig) -> DecoderLayer:
    """config: with this rank's sizes."""
    names = ("attn_norm", "mlp_norm", "attn_post_norm", "mlp_post_norm")
    attn, mlp, attn_post, mlp_post = (norm_named(name, weights, config) for name in names)
    assert attn is not None
    assert mlp is not None
    attention, feed_forward = family.attention.build(weights, config), family.feed_forward.build(weights, config)
    return DecoderLayer(attn, attention, mlp, feed_forward, attn_post, mlp_post)
