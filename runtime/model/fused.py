"""The forward pass of a `Decoder` with FlashInfer's fused kernels, on CUDA: a dozen launches a layer, not forty.

It computes what `Decoder.hidden` does but for rounding: norms and rotations round once, at their end.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .layers import AttentionStep


class FusedForward:
    """The layers of a decoder over the same weights. flashinfer: the module, whose kernels are in its root."""

    def __init__(self, model: Decoder, flashinfer: Any) -> None:
        self._model = model
        self._kernels = flashinfer
        positions = torch.arange(model.config.max_context, device=model.device)
        angles = torch.outer(positions.float(), model.rope_frequencies)
        self._cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)  # float32 [max_context, head_dim]

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """See `Decoder.hidden`."""
        model, config, kernels = self._model, self._model.config, self._kernels
        tokens, eps = len(token_ids), config.rms_eps
        widths = [config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim]
        residual = F.embedding(token_ids, model.embed)
        x = kernels.rmsnorm(residual, model.layers[0].attn_norm, eps)
        following = [layer.attn_norm for layer in model.layers[1:]] + [model.norm]
        for index, layer in enumerate(model.layers):
            q, k, v = F.linear(x, layer.qkv, layer.qkv_bias).split(widths, dim=-1)
            kernels.apply_rope_with_cos_sin_cache_inplace(positions, q, k, config.head_dim, self._cos_sin, is_neox=True)
            q, k, v = (each.view(tokens, -1, config.head_dim) for each in (q, k, v))
            x = F.linear(step.attend(index, q, k, v).reshape(tokens, -1), layer.out)
            kernels.fused_add_rmsnorm(x, residual, layer.mlp_norm, eps)  # residual += x; x = its norm
            x = F.linear(kernels.silu_and_mul(F.linear(x, layer.gate_up)), layer.down)
            kernels.fused_add_rmsnorm(x, residual, following[index], eps)
        return x
