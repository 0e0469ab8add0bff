"""A forward pass whose numbers do not depend on the batch: every operation on rows gets a fixed number of them.

Libraries choose a kernel, and with it an order of summation, by the shapes that they are given. Here the shapes are
always the same: rows go through in blocks, the last one padded. So a row's result is a function of the row. The cost is
that weights are read once for every block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .forward import Forward
from .layers.self_attention import AttentionStep

ROWS = 128


class FixedRows:
    """The same model as the forward pass that it is made of."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def hidden(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """See `Forward.hidden`."""
        tokens, forward = len(token_ids), self._forward
        rotations = [forward.rotations(block) for block in _blocks(positions)]
        residuals, xs = zip(*(forward.begin(block) for block in _blocks(token_ids)), strict=True)
        for index in range(len(forward.model.layers)):
            parts = [forward.project(index, *pair) for pair in zip(xs, rotations, strict=True)]
            q, k, v = (torch.cat(each)[:tokens] for each in zip(*parts, strict=True))
            attended = _blocks(step.attend(index, q, k, v))
            xs = [forward.finish_layer(index, *pair) for pair in zip(attended, residuals, strict=True)]
        return torch.cat(tuple(xs))[:tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        if not len(hidden):
            return self._forward.logits(hidden)
        return torch.cat([self._forward.logits(block) for block in _blocks(hidden)])[: len(hidden)]


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Blocks of ROWS rows, the last one filled up with zeros."""
    nothing = [0, 0] * (rows.dim() - 1)
    return F.pad(rows, (*nothing, 0, -len(rows) % ROWS)).split(ROWS)
