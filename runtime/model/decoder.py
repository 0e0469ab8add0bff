"""The decoder-only transformer: embedding, layers, norm, head. Holds weights and computes; keeps no state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import ModelConfig
from .layers import AttentionStep, DecoderLayer, Rotation, rms_norm


@dataclass(frozen=True)
class Decoder:
    """Weights in one dtype. `embed` and `head` are [vocab, width] (one tensor where tied), `norm` [width].

    rope_frequencies: float32 [head_dim / 2].
    """

    config: ModelConfig
    embed: Tensor
    layers: list[DecoderLayer]
    norm: Tensor
    head: Tensor
    rope_frequencies: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.device

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Last layer's output, normed: [tokens, width]. token_ids and positions: integer [tokens]."""
        x = F.embedding(token_ids, self.embed)
        rotation = Rotation.at(positions, self.rope_frequencies, self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer.forward(index, x, rotation, step, self.config)
        return rms_norm(x, self.norm, self.config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] from rows of `hidden`."""
        return F.linear(hidden, self.head).float()

    def parameters(self) -> list[Tensor]:
        """Every weight once."""
        tensors = [self.embed, self.norm]
        if self.head is not self.embed:
            tensors.append(self.head)
        for layer in self.layers:
            tensors += [layer.attn_norm, layer.qkv, layer.out, layer.mlp_norm, layer.gate_up, layer.down]
            if layer.qkv_bias is not None:
                tensors.append(layer.qkv_bias)
        return tensors
