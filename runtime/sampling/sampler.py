"""Chooses tokens: from a batch of logits and each row's sampling state to token ids and log-probabilities.

Nothing here depends on a row's neighbours or on shared random state: a choice is a function of the row's logits, its
own history, its seed and the position.

What a row's options mean is said in `params`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels.sampling import NativeSampler
from ..records import TopLogprobs
from ..step import SampledLogprob
from . import torch_choice as torch_sampling
from .sampling_state import SamplingState

__all__ = [
    "NOT_FINITE",
    "SampledTokens",
    "SamplingState",
    "sample",
    "token_logprobs",
]

NOT_FINITE = -2  # in place of a token id


@dataclass(frozen=True)
class SampledTokens:
    """token_ids int64 [rows], NOT_FINITE where the logits were not; `logprobs` for the rows that want them."""

    token_ids: np.ndarray
    logprobs: list[SampledLogprob | None]


def sample(
    logits: Tensor,
    states: Sequence[SamplingState],
    positions: np.ndarray,
    bitmasks: np.ndarray | None = None,
    kernels: NativeSampler | None = None,
) -> SampledTokens:
    """Chooses a token for each row and records it in the row's state.

    logits: float32 [rows, vocab], left as they are. positions [rows]: the index, in its sequence, of the token being
    chosen. bitmasks: int32 [rows, ceil(vocab / 32)], or None where all rows may take every token; token t is allowed
    where bit t % 32 of word t // 32 is set. kernels: they choose instead of torch's operations, by the same definition.
    Raises ValueError for arrays of other shapes.
    """
    rows, vocab = logits.shape
    if bitmasks is not None and (bitmasks.dtype != np.int32 or bitmasks.shape != (rows, -(-vocab // 32))):
        raise ValueError(f"bitmasks of {bitmasks.dtype} {bitmasks.shape} do not fit logits of {rows} x {vocab}")
    if len(states) != rows or len(positions) != rows:
        raise ValueError(f"{len(states)} states and {len(positions)} positions for {rows} rows of logits")
    if kernels is not None:
        chosen = kernels.choose(logits.numpy(), states, positions, bitmasks)
    else:
        chosen = torch_sampling.choose(logits, states, positions, bitmasks).cpu().numpy()
    token_ids = np.where(chosen < 0, NOT_FINITE, chosen)
    for state, token_id in zip(states, token_ids.tolist(), strict=True):
        if token_id >= 0:
            state.append(token_id)
    return SampledTokens(token_ids, _chosen_logprobs(logits, token_ids, states))


# --- log-probabilities ----------------------------------------------------------------------------------------------


def _chosen_logprobs(
    logits: Tensor, token_ids: np.ndarray, states: Sequence[SamplingState]
) -> list[SampledLogprob | None]:
    rows = [i for i, state in enumerate(states) if state.options.logprobs is not None and token_ids[i] >= 0]
    found: list[SampledLogprob | None] = [None] * len(states)
    if not rows:
        return found
    tops = [states[i].options.logprobs or 0 for i in rows]
    some = logits.index_select(0, torch.tensor(rows, device=logits.device))
    values, top = token_logprobs(some, token_ids[rows], tops)
    for row, value, likeliest in zip(rows, values, top, strict=True):
        found[row] = SampledLogprob(value, likeliest)
    return found


def token_logprobs(logits: Tensor, token_ids: np.ndarray, tops: Sequence[int]) -> tuple[list[float], list[TopLogprobs]]:
    """Natural log-probabilities of `token_ids` [rows] by `logits` [rows, vocab], and each row's `tops[i]` likeliest."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = torch.from_numpy(token_ids.astype(np.int64)).to(logits.device)
    own = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
    most = min(max(tops, default=0), logits.shape[1])
    if most == 0:
        return own, [TopLogprobs([], []) for _ in own]
    values, ids = (tensor.tolist() for tensor in logprobs.topk(most, dim=-1))
    return own, [TopLogprobs(ids[i][:top], values[i][:top]) for i, top in enumerate(tops)]
