"""The choice of tokens in torch operations, on the logits' device: the yardstick of the kernels, and what serves where
there are none.

But for top-p beyond its first tokens nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..execution.transfer import to_device
from .params import Sampling
from .sampling_state import EVERY_BIT, SamplingState, uniform

FIRST_TOP = 512  # top-p looks at so many of the likeliest tokens before it sorts them all


def choose(
    logits: Tensor, states: Sequence[SamplingState], positions: np.ndarray, bitmasks: np.ndarray | None
) -> Tensor:
    """Each row's token, int64 [rows], or -1 where there is none to choose; arguments as those of `sampler.sample`."""
    finite = torch.isfinite(logits.amax(-1)) & torch.isfinite(logits.amin(-1))
    chosen = logits.argmax(-1)
    masked = set() if bitmasks is None else set(np.flatnonzero((bitmasks != EVERY_BIT).any(1)).tolist())
    rows = [i for i, state in enumerate(states) if i in masked or not state.is_plain]
    if rows:
        index = _index(rows, logits)
        some = [states[i] for i in rows]
        changed = _adjusted(logits.index_select(0, index), some)
        if masked and bitmasks is not None:
            changed.masked_fill_(~_allowed(bitmasks[rows], logits), float("-inf"))
        chosen[index] = _choose(changed, [state.options for state in some], positions[rows])
        finite[index] &= torch.isfinite(changed.amax(-1))  # options can leave nothing to choose from
    return torch.where(finite, chosen, -1)


def _allowed(bitmasks: np.ndarray, logits: Tensor) -> Tensor:
    """What each row may take, bool [rows, vocab]. The bits are unpacked on the device."""
    words = to_device(bitmasks, logits.device).unsqueeze(-1)
    bits = words >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
    return bits.flatten(1)[:, : logits.shape[1]].bool()


def _index(places: Sequence[int], like: Tensor) -> Tensor:
    return to_device(np.array(places, np.int64), like.device)


# --- steps 1 to 4 ---------------------------------------------------------------------------------------------------


def _adjusted(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Penalties, bias and held-back stop ids, written into `logits` [rows, vocab], which is returned."""
    penalized = [i for i, state in enumerate(states) if state.penalizes]
    if penalized:
        index = _index(penalized, logits)
        logits[index] = _penalized(logits.index_select(0, index), [states[i] for i in penalized])
    for i, state in enumerate(states):
        if len(state.bias_ids):
            logits[i, to_device(state.bias_ids, logits.device)] += to_device(state.bias, logits.device)
        if state.holds_back_stop:
            logits[i].index_fill_(0, to_device(state.stop_ids, logits.device), float("-inf"))
    return logits


def _penalized(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    options = [state.options for state in states]
    counts = to_device(np.stack([state.counts for state in states if state.counts is not None]), logits.device)
    in_prompt = np.stack([state.in_prompt for state in states if state.in_prompt is not None])
    seen = to_device(in_prompt, logits.device) | (counts > 0)
    repetition = _column([option.repetition_penalty for option in options], torch.float32, logits)
    presence = _column([option.presence_penalty for option in options], torch.float32, logits)
    frequency = _column([option.frequency_penalty for option in options], torch.float32, logits)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen, repeated, logits) - presence * (counts > 0) - frequency * counts


def _column(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    return to_device(torch.tensor(values, dtype=dtype).numpy(), like.device).unsqueeze(1)


# --- steps 5 to 7 ---------------------------------------------------------------------------------------------------


def _choose(logits: Tensor, options: Sequence[Sampling], positions: np.ndarray) -> Tensor:
    """Token ids int64 [rows]: the largest logit where the temperature is 0, else drawn."""
    chosen = logits.argmax(-1)
    rows = [i for i, option in enumerate(options) if option.temperature > 0]
    if not rows:
        return chosen
    index = _index(rows, logits)
    some = [options[i] for i in rows]
    weights = _weights(logits.index_select(0, index), some)
    seeds = np.array([option.seed & 0xFFFF_FFFF_FFFF_FFFF for option in some], dtype=np.uint64)
    chosen[index] = _draw(weights, to_device(uniform(seeds, positions[rows]), logits.device))
    return chosen


def _weights(logits: Tensor, options: Sequence[Sampling]) -> Tensor:
    """Unnormalized probabilities after temperature, top-k, top-p and min-p: float64 [rows, vocab], likeliest 1."""
    wide = logits.double()
    temperature = _column([option.temperature for option in options], torch.float64, wide)
    weights = ((wide - wide.amax(-1, keepdim=True)) / temperature).exp_()
    vocab = weights.shape[1]
    least = _column([option.min_p for option in options], torch.float64, wide)  # smallest weight that is kept
    limited = [i for i, option in enumerate(options) if 0 < option.top_k < vocab]
    if limited:
        index = _index(limited, weights)
        top_k = [options[i].top_k for i in limited]
        largest = weights.index_select(0, index).topk(max(top_k), dim=-1).values
        floor = largest.gather(1, _index(top_k, weights).unsqueeze(1) - 1)
        least[index] = torch.maximum(least[index], floor)
        weights[index] = weights[index].masked_fill_(weights[index] < floor, 0.0)
    nucleus = [i for i, option in enumerate(options) if option.top_p < 1]
    if nucleus:
        index = _index(nucleus, weights)
        shares = _column([options[i].top_p for i in nucleus], torch.float64, weights)
        least[index] = torch.maximum(least[index], _nucleus_floor(weights.index_select(0, index), shares))
    return weights.masked_fill_(weights < least, 0.0)


def _nucleus_floor(weights: Tensor, shares: Tensor) -> Tensor:
    """The weight of the last token that top-p keeps, [rows, 1]. Most rows need the first few tokens only."""
    wanted = shares * weights.cumsum(-1)[:, -1:]  # in one fixed order, which a parallel sum is not
    size = min(FIRST_TOP, weights.shape[1])
    largest = weights.topk(size, dim=-1).values
    reached = largest.cumsum(-1)
    floor = largest.gather(1, (reached < wanted).sum(-1, keepdim=True).clamp_(max=size - 1))
    short = torch.nonzero(reached[:, -1:] < wanted)[:, 0]
    if len(short):
        ordered = weights.index_select(0, short).sort(-1, descending=True).values
        place = (ordered.cumsum(-1) < wanted[short]).sum(-1, keepdim=True)
        floor[short] = ordered.gather(1, place.clamp_(max=weights.shape[1] - 1))
    return floor


def _draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token, by id, at which the cumulative weight passes uniform * total. int64 [rows]."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms.unsqueeze(1) * total, below_total)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)
