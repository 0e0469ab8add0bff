"""The decoder-only transformer: embedding, layers, norm, head. It holds weights and computes its two ends; what lies
between, `forward.Forward` does. It keeps no state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..execution.ranks import ALONE, Ranks
from .config import ModelConfig
from .layers.activations import capped
from .layers.decoder_layer import DecoderLayer
from .layers.linear import Matrix, linear, tensors_of, types_of
from .layers.norm import RMSNorm
from .shard import Shard


@dataclass(frozen=True)
class Decoder:
    """Weights in one dtype; matrices may be quantized. `embed` and `head` are [vocab, width], one where tied.

    rope_frequencies: float32 [head_dim / 2]; local_frequencies: for layers with a window, where theirs differ.
    ranks: who computes the model; the weights are this rank's part of them.
    """

    config: ModelConfig
    embed: Tensor
    layers: list[DecoderLayer]
    norm: RMSNorm
    head: Matrix
    rope_frequencies: Tensor
    ranks: Ranks = ALONE
    local_frequencies: Tensor | None = None

    @cached_property
    def shard(self) -> Shard:
        """Which part of the model this is."""
        return Shard.of(self.config, self.ranks.rank, self.ranks.size)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.device

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] from rows of what `Forward.hidden` gives; [0, vocab] in other ranks than the first."""
        own = capped(linear(hidden, self.head).float(), self.config.logit_cap)
        return self.ranks.join_columns(own, self.config.vocab_size)

    def embedded(self, token_ids: Tensor) -> Tensor:
        """[tokens, width], scaled: each rank adds the rows of its own token ids, and zeros."""
        if self.ranks.size == 1:
            return self._scaled(F.embedding(token_ids, self.embed))
        vocab = self.shard.vocab
        foreign = ((token_ids < vocab.start) | (token_ids >= vocab.stop)).unsqueeze(1)
        own = (token_ids - vocab.start).clamp_(0, len(vocab) - 1)
        return self._scaled(self.ranks.sum(F.embedding(own, self.embed).masked_fill_(foreign, 0.0)))

    def _scaled(self, embedded: Tensor) -> Tensor:
        scale = self._embed_scale
        return embedded if scale == 1 else embedded.mul_(scale)

    @cached_property
    def _embed_scale(self) -> float:
        """Rounded to the weights' dtype, as the models were trained."""
        return float(torch.tensor(self.config.embed_scale, dtype=self.dtype))

    def matrices(self) -> list[Matrix]:
        """Every matrix once."""
        head = [] if self.head is self.embed else [self.head]
        return [self.embed, *head] + [matrix for layer in self.layers for matrix in layer.matrices()]

    @property
    def weight_types(self) -> str:
        """The types of its matrices, for people."""
        return "+".join(sorted(set(map(types_of, self.matrices()))))

    def parameters(self) -> list[Tensor]:
        """Every weight once, or what stands for it in memory."""
        tensors = [self.norm.weight, *(tensor for matrix in self.matrices() for tensor in tensors_of(matrix))]
        return tensors + [vector for layer in self.layers for vector in layer.vectors()]
