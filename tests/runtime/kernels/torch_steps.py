"""The reference for whole steps: torch's decoder over a pool of its own."""

from __future__ import annotations

import numpy as np
import torch

from sapwood.runtime.attention.base import AttentionBatch
from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.runner import ModelStep
from sapwood.runtime.model.decoder import Decoder
from sapwood.runtime.model.forward import Forward
from sapwood.runtime.model.plain import PlainArithmetic


class TorchSteps:
    """Runs the steps that a `NativeDecoder` runs."""

    def __init__(self, model: Decoder, slots: int) -> None:
        self.model = model
        self.pool = KVPool(model.config, slots, torch.float32)
        self.attention = TorchAttention(model.config, self.pool)
        self.slots = torch.empty(0, dtype=torch.int64)

    @torch.inference_mode()
    def forward(self, step: ModelStep) -> tuple[torch.Tensor, torch.Tensor]:
        self.attention.plan(AttentionBatch(step.qo_indptr, step.kv_indptr, step.kv_indices))
        self.slots = torch.from_numpy(step.slots.astype(np.int64))
        ids, positions = (torch.from_numpy(a.astype(np.int64)) for a in (step.token_ids, step.positions))
        hidden = Forward(self.model, PlainArithmetic(self.model)).hidden(ids, positions, self)
        hidden = hidden[torch.from_numpy(step.output_rows.astype(np.int64))]
        return hidden, self.model.logits(hidden)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.pool.store(layer, self.slots, k, v)
        return self.attention.run(layer, q)
