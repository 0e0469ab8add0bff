"""The forward pass of a `Decoder` with FlashInfer's fused kernels, on CUDA: a dozen launches a layer, not forty.

It computes what `Decoder.hidden` does but for rounding: norms and rotations round once, at their end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .layers import AttentionStep
from .linear import linear


class FusedForward:
    """A decoder's layers as stages over rows of tokens; only attention, between them, knows which rows belong together.

    The stages pass on the residual stream, which they change in place, and its norm.
    """

    def __init__(self, model: Decoder, flashinfer: Any) -> None:
        """flashinfer: the module, whose root has the kernels."""
        self.model = model
        self._kernels = flashinfer
        adds_one = model.config.norms_add_one
        self._norm = flashinfer.gemma_rmsnorm if adds_one else flashinfer.rmsnorm
        self._add_norm = flashinfer.gemma_fused_add_rmsnorm if adds_one else flashinfer.fused_add_rmsnorm
        is_silu = model.config.activation == "silu"
        self._gate = flashinfer.silu_and_mul if is_silu else flashinfer.gelu_tanh_and_mul
        self._cos_sin = self._local_cos_sin = self._rotations(model.rope_frequencies)
        if model.local_frequencies is not None:
            self._local_cos_sin = self._rotations(model.local_frequencies)
        self._norms_after = [layer.attn_norm for layer in model.layers[1:]] + [model.norm]

    def _rotations(self, frequencies: Tensor) -> Tensor:
        """Cosines, then sines, of every position: float32 [max_context, head_dim]."""
        positions = torch.arange(self.model.config.max_context, device=self.model.device)
        angles = torch.outer(positions.float(), frequencies)
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """See `Decoder.hidden`."""
        residual, x = self.begin(token_ids)
        for index in range(len(self.model.layers)):
            x = self.finish_layer(index, step.attend(index, *self.project(index, x, positions)), residual)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self.model.logits(hidden)

    def begin(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream at its start, and its norm, each [tokens, width]."""
        residual = self.model.embedded(token_ids)
        return residual, self._norm(residual, self.model.layers[0].attn_norm, self.model.config.rms_eps)

    def project(self, index: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a layer, q and k rotated: each [tokens, its heads of this rank, head_dim]."""
        config, layer = self.model.shard.config, self.model.layers[index]
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        q, k, v = linear(x, layer.qkv, layer.qkv_bias).split([q_width, kv_width, kv_width], dim=-1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._head_norm(q, layer.q_norm), self._head_norm(k, layer.k_norm)
        rotations = self._local_cos_sin if config.window(index) else self._cos_sin
        self._kernels.apply_rope_with_cos_sin_cache_inplace(positions, q, k, config.head_dim, rotations, is_neox=True)
        q, k, v = (part.view(len(x), -1, config.head_dim) for part in (q, k, v))
        return q, k, v

    def _head_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """The norm of every head of x [tokens, heads * head_dim]."""
        return self._norm(x.reshape(-1, len(weight)), weight, self.model.config.rms_eps).view(len(x), -1)

    def finish_layer(self, index: int, attended: Tensor, residual: Tensor) -> Tensor:
        """The rest of a layer: adds to the residual stream and gives its norm, as the next layer wants it."""
        layer, eps = self.model.layers[index], self.model.config.rms_eps
        x = self.model.ranks.sum(linear(attended.reshape(len(attended), -1), layer.out))
        if layer.attn_post_norm is not None:
            x = self._norm(x, layer.attn_post_norm, eps)
        self._add_norm(x, residual, layer.mlp_norm, eps)  # residual += x; x = its norm
        x = self.model.ranks.sum(linear(self._gate(linear(x, layer.gate_up)), layer.down))
        if layer.mlp_post_norm is not None:
            x = self._norm(x, layer.mlp_post_norm, eps)
        self._add_norm(x, residual, self._norms_after[index], eps)
        return x
