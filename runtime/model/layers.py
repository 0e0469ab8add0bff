"""The pieces that decoders are made of, as plain functions and small records of tensors.

Rows are tokens: activations are [tokens, width] whatever sequences the tokens belong to. Nothing here knows of
requests, slots or batches; attention is handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ranks import Ranks
from .config import ModelConfig, Rope
from .linear import Matrix, linear


class AttentionStep(Protocol):
    """What a layer asks of attention: keep this step's keys and values, then attend with its queries."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim] -> [tokens, heads, head_dim]."""
        ...


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension, computed in float32, in x's dtype.

    Where norms add one, the weight is one more, and everything is rounded once, as in Gemma.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(config.rms_eps))
    if config.norms_add_one:
        return (wide * scale).mul_(1 + weight.float()).to(x.dtype)
    return (wide * scale).to(x.dtype) * weight


def gated_mlp(x: Tensor, gate_up: Matrix, down: Matrix, activation: str) -> Tensor:
    """down(act(gate(x)) * up(x)), with gate and up stacked as the rows of one matrix [2 * inner, width].

    activation: as `ModelConfig` has it.
    """
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return linear(gate.mul_(up), down)


def capped(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in x's memory; x itself where cap is 0."""
    return x.div_(cap).tanh_().mul_(cap) if cap else x


def rope_frequencies(rope: Rope, head_dim: int, factors: Tensor | None) -> Tensor:
    """Angle per position of each rotated pair, float32 [head_dim / 2]. `factors` only for scaling "factors".

    The llama3 rule is Meta's (llama-models, `apply_scaling`), as transformers' `_compute_llama3_parameters` has it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "factors":
        assert factors is not None
        return frequencies / factors.float()
    if rope.scaling == "llama3":
        turns = rope.original_context * frequencies / (2 * math.pi)  # full turns within the original context
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return (1 - keep) * frequencies / rope.factor + keep * frequencies
    return frequencies


@dataclass(frozen=True)
class Rotation:
    """The cosines and sines of a step's tokens, each [tokens, 1, head_dim / 2] in the activations' dtype."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def at(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
        """positions: integer [tokens]. Angles are computed in float32."""
        angles = torch.outer(positions.float(), frequencies).unsqueeze(1)
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))

    def apply(self, x: Tensor) -> Tensor:
        """Rotates pairs (i, i + head_dim / 2) of x [tokens, heads, head_dim]."""
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), dim=-1)


@dataclass(frozen=True)
class DecoderLayer:
    """A pre-norm decoder layer. Matrices are [out, in]; qkv stacks the rows of q, k and v, gate_up those of its two.

    Where there are ranks, qkv and gate_up have this rank's rows, out and down its columns. The post-norms are of what
    attention and MLP give, before it is added; q_norm and k_norm [head_dim] are of every head, before it is rotated.
    They are None where there are none.
    """

    attn_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    out: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix
    attn_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    def norms(self) -> list[Tensor]:
        """Every norm's weight."""
        some = (self.attn_post_norm, self.mlp_post_norm, self.q_norm, self.k_norm)
        return [self.attn_norm, self.mlp_norm, *(norm for norm in some if norm is not None)]

    def forward(
        self, index: int, x: Tensor, rotation: Rotation, step: AttentionStep, config: ModelConfig, ranks: Ranks
    ) -> Tensor:
        """x [tokens, width] -> the same shape; x itself may be overwritten. config: with this rank's sizes."""
        tokens = x.shape[0]
        rotated_heads = config.heads + config.kv_heads
        normed = rms_norm(x, self.attn_norm, config)
        qkv = linear(normed, self.qkv, self.qkv_bias).view(tokens, -1, config.head_dim)
        qk = qkv[:, :rotated_heads]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split([config.heads, config.kv_heads], dim=1)
            qk = torch.cat((rms_norm(q, self.q_norm, config), rms_norm(k, self.k_norm, config)), dim=1)
        qk = rotation.apply(qk)
        attended = step.attend(index, qk[:, : config.heads], qk[:, config.heads :], qkv[:, rotated_heads:])
        attended = ranks.sum(linear(attended.reshape(tokens, -1), self.out))
        x += attended if self.attn_post_norm is None else rms_norm(attended, self.attn_post_norm, config)
        normed = rms_norm(x, self.mlp_norm, config)
        inner = ranks.sum(gated_mlp(normed, self.gate_up, self.down, config.activation))
        x += inner if self.mlp_post_norm is None else rms_norm(inner, self.mlp_post_norm, config)
        return x
