"""Functions of single values."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) * up, [rows, inner], of gate and up beside one another, [rows, 2 * inner].

    activation: as `ModelConfig` has it.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return gate.mul_(up)


def capped(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in x's memory; x itself where cap is 0."""
    return x.div_(cap).tanh_().mul_(cap) if cap else x
