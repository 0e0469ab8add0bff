"""What an executor needs of a model: a forward pass over a step's tokens, whatever computes it.

A runner owns weights and writes the step's K and V to the pool that it was made with; of requests it knows nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..attention.base import Attention, AttentionBatch, SharedPrefix
from ..model.config import ModelConfig
from ..model.decoder import Decoder
from ..model.families.registry import family_of
from ..model.forward import Forward
from ..model.layers.self_attention import AttentionStep
from ..model.plain import PlainArithmetic
from .graphs import Capture, DecodeGraphs, FixedAttention
from .kv_pool import KVPool
from .transfer import indices_to_device, to_device


@dataclass(frozen=True)
class ModelStep:
    """What a step computes; all arrays int32. Indices as `attention.base.AttentionBatch` describes them.

    token_ids, positions, slots: [tokens]; a token's K and V go to its slot. output_rows: the tokens whose hidden
    states are wanted, ascending. shared: an entry is in one group at most; results do not depend on the groups.
    fed: int64, on the runner's device: a token id below 0 stands for fed[-1 - id], which the host does not know yet.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    qo_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    output_rows: np.ndarray
    shared: Sequence[SharedPrefix] = ()
    fed: Tensor | None = None


class Runner(ABC):
    """A model and its KV pool. Not for use from several threads at once.

    backend: its name. dtype: the types of the weights, for people. parameters: how many the whole model has.
    weight_bytes: how much memory those take that this runner has. config: the whole model's, pool: this rank's part.
    """

    config: ModelConfig
    pool: KVPool
    backend: str
    dtype: str
    parameters: int
    weight_bytes: int

    @abstractmethod
    def forward(self, step: ModelStep) -> Tensor:
        """Stores the K and V of the step's tokens; [outputs, width], the last layer's output, normed."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] from rows of what `forward` gave; in other ranks than the first [0, vocab]."""


class ForwardPass(Protocol):
    """What `Forward` does; see there."""

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


class TorchRunner(Runner):
    """A decoder in torch operations, on the device of its weights; it may be one rank's part of a model."""

    def __init__(self, model: Decoder, pool: KVPool, attention: Attention, way: ForwardPass | None = None) -> None:
        """way: computes the model; in torch's own operations where none is given."""
        self.config = model.config
        self.model = model
        self.pool = pool
        self.backend = attention.name
        self.dtype = model.weight_types
        self.parameters = sum(
            math.prod(spec.shape) for spec in family_of(self.config.architecture).tensors(self.config)
        )
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self._attention = attention
        self._way = way or Forward(model, PlainArithmetic(model))
        self._graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Computes a prompt into the padding slot, so that what a first step compiles and sets up is no request's.

        Only for attention that can live in graphs, which does not need that slot's zeros.
        """
        if not isinstance(self._attention, FixedAttention):
            return
        two = np.full(2, self.pool.padding_slot, np.int32)
        bounds = np.array([0, 2], np.int32)
        step = ModelStep(np.zeros(2, np.int32), np.arange(2, dtype=np.int32), two, bounds, bounds, two, bounds[:1])
        self.logits(self.forward(step))

    @torch.inference_mode()
    def capture_decodes(self, most: int, capture: Capture, progress: Callable[[str], None]) -> None:
        """Lets graphs compute decodes of up to `most` entries from now on, where the attention can live in them."""
        if isinstance(self._attention, FixedAttention):
            attending = partial(_PooledAttention, self.pool, self._attention)
            self._graphs = DecodeGraphs(
                self._attention, self.pool, self._way.hidden, attending, most=most, capture=capture, progress=progress
            )

    def forward(self, step: ModelStep) -> Tensor:
        batch = AttentionBatch(step.qo_indptr, step.kv_indptr, step.kv_indices, step.shared)
        if self._graphs is not None and self._graphs.fits(batch):
            inputs = np.stack((step.token_ids, step.positions, step.slots))
            hidden = self._graphs.run(batch, inputs, partial(with_fed, fed=step.fed))
            return hidden[to_device(step.output_rows.astype(np.int64), self.model.device)]
        self._attention.plan(batch)
        arrays = (step.token_ids, step.positions, step.slots, step.output_rows)
        token_ids, positions, slots, outputs = indices_to_device(arrays, self.model.device)
        attention = _PooledAttention(self.pool, self._attention, slots)
        return self._way.hidden(with_fed(token_ids, step.fed), positions, attention).index_select(0, outputs)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._way.logits(hidden)


def with_fed(token_ids: Tensor, fed: Tensor | None) -> Tensor:
    """The ids with what `ModelStep.fed` has in place of those below 0."""
    if fed is None or not len(fed):
        return token_ids
    return torch.where(token_ids < 0, fed[(-1 - token_ids).clamp(min=0)], token_ids)


@dataclass(frozen=True)
class _PooledAttention:
    """Attention of one step: every layer's K and V go to the pool before any query reads from it."""

    pool: KVPool
    attention: Attention
    slots: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.store(layer, self.slots, k, v)
        return self.attention.run(layer, q)
