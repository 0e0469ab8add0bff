"""The interface of attention backends: FlashInfer's paged form with pages of one token.

A backend plans once per step and runs once per layer. It reads the KV pool and never writes to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..execution.kv_pool import KVPool
from ..model.config import ModelConfig


@dataclass(frozen=True)
class SharedPrefix:
    """Entries of a step whose sequences begin with the same `length` slots, which none of their queries is in."""

    entries: Sequence[int]
    length: int


@dataclass(frozen=True)
class AttentionBatch:
    """The ragged shape of a step with B entries; all arrays int32.

    qo_indptr [B + 1]: entry b's queries are rows [qo_indptr[b], qo_indptr[b + 1]) of q.
    kv_indptr [B + 1], kv_indices: entry b attends to the slots kv_indices[kv_indptr[b] : kv_indptr[b + 1]], in order
        of position. Its queries are the last of those positions: with n queries and m slots, query i (from 0) sees
        the first m - n + i + 1 of them.
    shared: an entry is in one group at most; a backend may read a group's slots once for all its entries.
    """

    qo_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    shared: Sequence[SharedPrefix] = ()


class Attention(ABC):
    """Causal attention with grouped queries over a KV pool: softmax(cap(scale * q k)) v, with `attention_scale` and
    `score_cap` of the config.

    A query at position p in a layer with a window of w sees the keys p - w + 1 to p, of those that its entry has.
    """

    name: str

    def __init__(self, config: ModelConfig, pool: KVPool) -> None:
        self.config = config
        self.pool = pool
        self.windows = sorted(set(config.windows)) or [0]  # each that some layer has; 0: none

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> None:
        """Prepares for a step; it holds until the next call."""

    @abstractmethod
    def run(self, layer: int, q: Tensor) -> Tensor:
        """q [tokens, heads, head_dim], rotated -> attended values of the same shape and dtype.

        The step's own K and V are in the pool already. A result depends on its entry's slots only, whatever (NaN
        included) is in the others.
        """
