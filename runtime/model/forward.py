"""The forward pass of a `Decoder`, whatever computes its operations. It keeps no state between steps."""

from __future__ import annotations

from torch import Tensor

from .decoder import Decoder
from .layers.arithmetic import Arithmetic, Rotate
from .layers.self_attention import AttentionStep


class Forward:
    """A decoder's layers as stages over rows of tokens; only attention, between them, knows which rows belong together.

    The stages pass on the residual stream, which they change in place, and its norm.
    """

    def __init__(self, model: Decoder, arithmetic: Arithmetic) -> None:
        self.model = model
        self._arithmetic = arithmetic
        self._norms_after = [layer.attn_norm for layer in model.layers[1:]] + [model.norm]

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Last layer's output, normed: [tokens, width]. token_ids and positions: integer [tokens]."""
        residual, x = self.begin(token_ids)
        rotations = self.rotations(positions)
        for index in range(len(self.model.layers)):
            x = self.finish_layer(index, step.attend(index, *self.project(index, x, rotations)), residual)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self.model.logits(hidden)

    def begin(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream at its start, and its norm, each [tokens, width]."""
        residual = self.model.embedded(token_ids)
        return residual, self._arithmetic.norm(residual, self.model.layers[0].attn_norm)

    def rotations(self, positions: Tensor) -> tuple[Rotate, Rotate]:
        """See `Arithmetic.rotations`."""
        return self._arithmetic.rotations(positions)

    def project(self, index: int, x: Tensor, rotations: tuple[Rotate, Rotate]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a layer, q and k rotated: each [tokens, its heads of this rank, head_dim]."""
        everywhere, local = rotations
        rotate = local if self.model.config.window(index) else everywhere
        return self.model.layers[index].attention.project(x, rotate, self._arithmetic)

    def finish_layer(self, index: int, attended: Tensor, residual: Tensor) -> Tensor:
        """The rest of a layer: adds to the residual stream and gives its norm, as the next layer wants it."""
        layer, sum_of, arithmetic = self.model.layers[index], self.model.ranks.sum, self._arithmetic
        x = sum_of(layer.attention.finish(attended))
        if layer.attn_post_norm is not None:
            x = arithmetic.norm(x, layer.attn_post_norm)
        x = arithmetic.add_norm(x, residual, layer.mlp_norm)
        x = sum_of(layer.feed_forward.forward(x, arithmetic))
        if layer.mlp_post_norm is not None:
            x = arithmetic.norm(x, layer.mlp_post_norm)
        return arithmetic.add_norm(x, residual, self._norms_after[index])
