"""A model small enough for every test, in both forms."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.decoder import NativeDecoder, Weights
from sapwood.runtime.model.config import ModelConfig
from sapwood.runtime.model.decoder import Decoder


@dataclass
class TinyModel:
    """The same random weights as torch's decoder and as packed matrices."""

    config: ModelConfig
    reference: Decoder
    weights: Weights

    def native(
        self, library: Library, *, threads: int = 2, slots: int = 512, dtype: torch.dtype = torch.float32
    ) -> NativeDecoder:
        """A decoder over a pool of its own whose slots all hold NaN, so that one read by mistake shows."""
        pool = KVPool(self.config, slots, dtype)
        pool.poison(torch.arange(slots))
        return NativeDecoder(self.config, self.weights, pool, library, threads)
