"""What an executor needs of a model: a forward pass over a step's tokens, whatever computes it.

A runner owns weights and writes the step's K and V to the pool that it was made with; of requests it knows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

<<<<<<< HEAD:runtime/execution/runner.py
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
=======
from .attention.base import SharedPrefix
from .kv_pool import KVPool
from .model.config import ModelConfig
>>>>>>> 254675f (runtime/execution: what loads and runs a model, apart from the records and rules it stands on):runtime/runner.py


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
