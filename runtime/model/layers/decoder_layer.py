"""A layer put together from its parts. Rows are tokens, whatever sequences those belong to: nothing here knows of
requests, slots or batches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .feed_forward import FeedForward
from .linear import Matrix
from .norm import RMSNorm
from .self_attention import SelfAttention


@dataclass(frozen=True)
class DecoderLayer:
    """A pre-norm decoder layer. The post-norms are of what attention and feed-forward give, before it is added; None
    where there are none. `forward.Forward` computes it."""

    attn_norm: RMSNorm
    attention: SelfAttention
    mlp_norm: RMSNorm
    feed_forward: FeedForward
    attn_post_norm: RMSNorm | None = None
    mlp_post_norm: RMSNorm | None = None

    def norms(self) -> list[RMSNorm]:
        """Those of the residual stream and of what is added to it."""
        post = (self.attn_post_norm, self.mlp_post_norm)
        return [self.attn_norm, self.mlp_norm, *(norm for norm in post if norm is not None)]

    def matrices(self) -> list[Matrix]:
        """Every matrix once."""
        return self.attention.matrices() + self.feed_forward.matrices()

    def vectors(self) -> list[Tensor]:
        """Every weight that is no matrix, once."""
        return [norm.weight for norm in self.norms()] + self.attention.vectors() + self.feed_forward.vectors()
