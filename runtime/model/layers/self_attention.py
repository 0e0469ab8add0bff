"""The attention part of a layer: what comes before and after attention over the KV pool, which is handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .arithmetic import Arithmetic, Rotate
from .linear import Matrix, linear
from .norm import RMSNorm


class AttentionStep(Protocol):
    """What a layer asks of attention: keep this step's keys and values, then attend with its queries."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim] -> [tokens, heads, head_dim]."""
        ...


@dataclass(frozen=True)
class SelfAttention:
    """Grouped-query attention. Matrices are [out, in]; qkv stacks the rows of q, k and v, of so many heads each.

    Where there are ranks, it has this rank's heads: rows of qkv, columns of out. q_norm and k_norm are of every head,
    before it is rotated.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv: Matrix
    out: Matrix
    bias: Tensor | None = None
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None

    def project(self, x: Tensor, rotate: Rotate, arithmetic: Arithmetic) -> tuple[Tensor, Tensor, Tensor]:
        """x [tokens, width], normed -> q, k and v, each [tokens, its heads, head_dim], q and k rotated."""
        qkv = linear(x, self.qkv, self.bias).view(len(x), -1, self.head_dim)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = arithmetic.norm(q, self.q_norm), arithmetic.norm(k, self.k_norm)
        return *rotate.apply(q, k), v

    def finish(self, attended: Tensor) -> Tensor:
        """attended [tokens, heads, head_dim] -> this rank's share of a sum [tokens, width]."""
        return linear(attended.reshape(len(attended), -1), self.out)

    def matrices(self) -> list[Matrix]:
        return [self.qkv, self.out]

    def vectors(self) -> list[Tensor]:
        """What it has beside its matrices."""
        norms = [norm.weight for norm in (self.q_norm, self.k_norm) if norm is not None]
        return norms if self.bias is None else [*norms, self.bias]
