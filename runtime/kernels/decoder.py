"""A decoder that computes a whole step in one call of the kernel library, its weights as the checkpoint has them.

It keeps weights and knows where the KV pool is; of requests it knows nothing but a step's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from ..errors import UnsupportedModel
from ..execution.kv_pool import KVPool
from ..execution.runner import ModelStep, Runner
from ..model.config import ModelConfig
from . import bindings
from .bindings import Library, address, ints
from .packing import PackedMatrix

Result = TypeVar("Result")
KV_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
HEAD_DIM_UNIT = 16
MAX_HEAD_DIM = 256
MAX_SHARED_HEADS = 96
MATRICES = ("q", "k", "v", "out", "gate", "up", "down")


class NotForKernels(UnsupportedModel):
    """The model is supported, but not by the kernels."""


@dataclass(frozen=True)
class LayerWeights:
    """A layer's matrices, and its norms and bias as float32 vectors. qkv_bias: q's, k's and v's in a row, or None."""

    q: PackedMatrix
    k: PackedMatrix
    v: PackedMatrix
    out: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attn_norm: np.ndarray
    mlp_norm: np.ndarray
    qkv_bias: np.ndarray | None


@dataclass(frozen=True)
class Weights:
    """A decoder's weights. `head` is `embed` where they are tied. rope_frequencies: float32 [head_dim / 2]."""

    layers: list[LayerWeights]
    embed: PackedMatrix
    head: PackedMatrix
    norm: np.ndarray
    rope_frequencies: np.ndarray

    @property
    def vector_values(self) -> int:
        """How many numbers the norms and biases have."""
        vectors = [self.norm]
        for layer in self.layers:
            vectors += [layer.attn_norm, layer.mlp_norm]
            if layer.qkv_bias is not None:
                vectors.append(layer.qkv_bias)
        return sum(vector.size for vector in vectors)

    def matrices(self) -> list[PackedMatrix]:
        """Every matrix once."""
        some = [self.embed] if self.head is self.embed else [self.embed, self.head]
        return some + [getattr(layer, name) for layer in self.layers for name in MATRICES]


class NativeDecoder(Runner):
    """Runs steps over a KV pool in one call each."""

    backend = "cpu"

    def __init__(self, config: ModelConfig, weights: Weights, pool: KVPool, library: Library, threads: int) -> None:
        """Raises NotForKernels for what the kernels do not compute."""
        check_model(config)
        if pool.dtype not in KV_TYPES:
            raise NotForKernels(f"the kernels have no KV pool of {pool.dtype}")
        self.config = config
        self.weights = weights
        self.pool = pool
        self.isa = library.isa
        self._workspace = library.workspace(threads)
        matrices = weights.matrices()
        self.dtype = "+".join(sorted({matrix.type for matrix in matrices}))
        self.parameters = sum(matrix.n * matrix.k for matrix in matrices) + weights.vector_values
        self.weight_bytes = sum(matrix.nbytes for matrix in matrices) + 4 * weights.vector_values
        self._layers = (bindings.Layer * config.layers)(*(self._layer(i) for i in range(config.layers)))
        self._model = self._describe()

    @property
    def threads(self) -> int:
        return self._workspace.threads

    def forward(self, step: ModelStep) -> torch.Tensor:
        """Stores the K and V of the step's tokens; float32 [outputs, width], the last layer's output, normed.

        Raises ValueError for a step whose arrays are not sound.
        """
        hidden = np.empty((len(step.output_rows), self.config.hidden_size), np.float32)
        with_arrays(step, hidden, lambda arrays: self._workspace.forward(self._model, arrays))
        return torch.from_numpy(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocab] from rows of what `forward` gave."""
        out = np.empty((len(hidden), self.config.vocab_size), np.float32)
        self._workspace.logits(self._model, hidden.numpy(), out)
        return torch.from_numpy(out)

    def attention(self, layer: int, step: ModelStep, q: np.ndarray) -> np.ndarray:
        """Attention alone, over a layer's pool as it is: q float32 [tokens, heads, head_dim], rotated."""
        return with_arrays(step, None, lambda arrays: self._workspace.attention(self._model, layer, arrays, q))

    def _layer(self, index: int) -> bindings.Layer:
        weights = self.weights.layers[index]
        keys, values = self.pool.layer(index)
        bias = None if weights.qkv_bias is None else address(weights.qkv_bias)
        return bindings.Layer(
            attn_norm=address(weights.attn_norm),
            qkv_bias=bias,
            mlp_norm=address(weights.mlp_norm),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            **{name: getattr(weights, name).struct() for name in MATRICES},
        )

    def _describe(self) -> bindings.SwModel:
        config, weights = self.config, self.weights
        return bindings.SwModel(
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            width=config.hidden_size,
            inner=config.intermediate_size,
            vocab=config.vocab_size,
            kv_type=bindings.TYPES[KV_TYPES[self.pool.dtype]],
            slots=self.pool.slots,
            rms_eps=config.rms_eps,
            rope_frequencies=address(weights.rope_frequencies),
            norm=address(weights.norm),
            embed=weights.embed.struct(),
            head=weights.head.struct(),
            layer=cast(self._layers, POINTER(bindings.Layer)),
        )


def check_model(config: ModelConfig) -> None:
    """Raises NotForKernels for a size or an operation that the kernels do not have."""
    if config.head_dim % HEAD_DIM_UNIT or config.head_dim > MAX_HEAD_DIM:
        raise NotForKernels(
            f"the kernels have head dimensions that are multiples of {HEAD_DIM_UNIT} up to {MAX_HEAD_DIM}, "
            f"not {config.head_dim}"
        )
    if config.heads // config.kv_heads > MAX_SHARED_HEADS:
        raise NotForKernels(f"the kernels let {MAX_SHARED_HEADS} heads at most share one key-value head")
    for unlike, what in (
        (config.activation != "silu", f"MLPs gated by {config.activation}"),
        (config.norms_add_one, "norms that add one to their weights"),
        (config.embed_scale != 1, "scaled embeddings"),
        (config.score_cap or config.logit_cap, "caps of attention scores and logits"),
        (config.score_scale, "attention scaled other than by the head dimension"),
    ):
        if unlike:
            raise NotForKernels(f"the kernels do not have {what}, which this model ({config.architecture}) needs")
    if config.windows:
        window = min(filter(None, config.windows))
        raise NotForKernels(
            f"the kernels do not have sliding windows, and this model ({config.architecture}) has one of {window} "
            f"tokens; with max_context {window} or less it needs none"
        )


def with_arrays(step: ModelStep, hidden: np.ndarray | None, call: Callable[[bindings.Step], Result]) -> Result:
    """Calls with the step's arrays as the kernels take them, which live for the length of the call."""
    arrays = {
        name: ints(getattr(step, name))
        for name in ("token_ids", "positions", "slots", "qo_indptr", "kv_indptr", "kv_indices", "output_rows")
    }
    tokens, entries = len(arrays["token_ids"]), len(arrays["qo_indptr"]) - 1
    if len(arrays["positions"]) != tokens or len(arrays["slots"]) != tokens or len(arrays["kv_indptr"]) != entries + 1:
        raise ValueError("the step's arrays differ in length")
    if len(arrays["kv_indices"]) != arrays["kv_indptr"][-1]:
        raise ValueError("kv_indptr does not end at the number of slots")
    arrays["group_indptr"] = ints(np.cumsum([0, *(len(group.entries) for group in step.shared)]))
    arrays["group_entries"] = ints([entry for group in step.shared for entry in group.entries])
    arrays["group_lengths"] = ints([group.length for group in step.shared])
    return call(
        bindings.Step(
            tokens=tokens,
            entries=entries,
            groups=len(step.shared),
            outputs=len(arrays["output_rows"]),
            hidden=None if hidden is None else address(hidden),
            **{name: address(array) for name, array in arrays.items()},
        )
    )
