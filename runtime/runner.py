"""What an executor needs of a model: a forward pass over a step's tokens, whatever computes it.

A runner owns weights and writes the step's K and V to the pool that it was made with; of requests it knows nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .attention.base import Attention, AttentionBatch
from .kv_pool import KVPool
from .model.config import ModelConfig
from .model.decoder import Decoder
from .model.registry import family_of


@dataclass(frozen=True)
class SharedPrefix:
    """Entries of a step whose sequences begin with the same `length` slots."""

    entries: Sequence[int]
    length: int


@dataclass(frozen=True)
class ModelStep:
    """What a step computes; all arrays int32. Indices as `attention.base.AttentionBatch` describes them.

    token_ids, positions, slots: [tokens]; a token's K and V go to its slot. output_rows: the tokens whose hidden
    states are wanted, ascending. shared: an entry is in one group at most; results do not depend on the groups.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    qo_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    output_rows: np.ndarray
    shared: Sequence[SharedPrefix] = field(default_factory=tuple)


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


class TorchRunner(Runner):
    """A decoder in torch operations, which may be one rank's part of a model."""

    def __init__(self, model: Decoder, pool: KVPool, attention: Attention) -> None:
        self.config = model.config
        self.model = model
        self.pool = pool
        self.backend = attention.name
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.parameters = sum(
            math.prod(spec.shape) for spec in family_of(self.config.architecture).tensors(self.config)
        )
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        self._attention = attention

    def forward(self, step: ModelStep) -> Tensor:
        self._attention.plan(AttentionBatch(step.qo_indptr, step.kv_indptr, step.kv_indices))
        slots = torch.from_numpy(step.slots.astype(np.int64))
        hidden = self.model.hidden(
            torch.from_numpy(step.token_ids.astype(np.int64)),
            torch.from_numpy(step.positions.astype(np.int64)),
            _PooledAttention(self.pool, self._attention, slots),
        )
        return hidden.index_select(0, torch.from_numpy(step.output_rows.astype(np.int64)))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)


@dataclass(frozen=True)
class _PooledAttention:
    """Attention of one step: every layer's K and V go to the pool before any query reads from it."""

    pool: KVPool
    attention: Attention
    slots: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.store(layer, self.slots, k, v)
        return self.attention.run(layer, q)
