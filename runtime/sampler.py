"""Chooses tokens: from a batch of logits and each row's sampling state to token ids and log-probabilities.

Nothing here depends on a row's neighbours or on shared random state: a choice is a function of the row's logits, its
own history, its seed and the position.

A row's logits go through these steps, in this order:
1. repetition penalty over every token of prompt and completion (CTRL, arXiv:1909.05858; as transformers has it):
   positive logits are divided by it, others multiplied;
2. presence and frequency penalty over the completion (OpenAI): logit - presence * (count > 0) - frequency * count;
3. logit bias, added;
4. until `min_tokens` are generated, the stop ids are excluded;
5. temperature 0 takes the largest logit (the lowest id of equals); else logits are divided by the temperature;
6. top-k, then top-p over what is left (the fewest most likely tokens whose share reaches top_p), then min-p (a token
   needs min_p times the likeliest one's probability). Tokens exactly as likely as the last one kept are kept too;
7. the inverse of the cumulative distribution, in order of token id, at `uniform(seed, position)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

NOT_FINITE = -2
FIRST_TOP = 512  # top-p looks at so many of the likeliest tokens before it sorts them all


class SamplingOptions(Protocol):
    """How one row wants its tokens chosen; ranges were checked before. `logprobs`: None, or how many alternatives."""

    @property
    def seed(self) -> int: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def logprobs(self) -> int | None: ...


class SamplingState:
    """One row's options and history. Counts over the vocabulary are kept only where a penalty needs them."""

    def __init__(
        self,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        prompt_ids: np.ndarray,
        output_ids: np.ndarray,
        vocab_size: int,
    ) -> None:
        """output_ids: what the row generated before (a resumed row); it counts as generated."""
        self.options = options
        self.stop_ids = torch.tensor(sorted(set(stop_ids)), dtype=torch.int64)
        self.bias_ids = torch.tensor(list(options.logit_bias.keys()), dtype=torch.int64)
        self.bias = torch.tensor(list(options.logit_bias.values()), dtype=torch.float32)
        self.generated = len(output_ids)
        self.penalizes = bool(options.repetition_penalty != 1 or options.presence_penalty or options.frequency_penalty)
        self.in_prompt: Tensor | None = None
        self.counts: Tensor | None = None
        if self.penalizes:
            self.in_prompt = torch.zeros(vocab_size, dtype=torch.bool)
            self.in_prompt[torch.from_numpy(prompt_ids.astype(np.int64))] = True
            counts = np.bincount(output_ids, minlength=vocab_size).astype(np.float32)
            self.counts = torch.from_numpy(counts)

    @property
    def holds_back_stop(self) -> bool:
        """Whether stop ids are excluded from the next choice."""
        return self.generated < self.options.min_tokens and len(self.stop_ids) > 0

    @property
    def is_plain(self) -> bool:
        """Whether the next choice is just the largest of the model's own logits."""
        changed = self.penalizes or len(self.bias_ids) > 0 or self.holds_back_stop
        return self.options.temperature == 0 and not changed

    def append(self, token_id: int) -> None:
        """Records a generated token."""
        self.generated += 1
        if self.counts is not None:
            self.counts[token_id] += 1


@dataclass(frozen=True)
class TopTokens:
    """The likeliest tokens at a position, most likely first, with natural log-probabilities."""

    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class ChosenLogprob:
    """Row `row` of the batch chose a token with this log-probability, by the model's own logits."""

    row: int
    logprob: float
    top: TopTokens


@dataclass(frozen=True)
class Choice:
    """token_ids int64 [rows], NOT_FINITE where the logits were not; `logprobs` for the rows that want them."""

    token_ids: np.ndarray
    logprobs: list[ChosenLogprob]


def sample(logits: Tensor, states: Sequence[SamplingState], positions: np.ndarray) -> Choice:
    """Chooses a token for each row and records it in the row's state.

    logits: float32 [rows, vocab]. positions [rows]: the index, in its sequence, of the token being chosen.
    """
    finite = torch.isfinite(logits.amax(-1)) & torch.isfinite(logits.amin(-1))
    chosen = logits.argmax(-1)
    rows = [i for i, state in enumerate(states) if not state.is_plain]
    if rows:
        index = torch.tensor(rows)
        some = [states[i] for i in rows]
        changed = _adjusted(logits.index_select(0, index), some)
        chosen[index] = _choose(changed, [state.options for state in some], positions[rows])
        finite[index] &= torch.isfinite(changed.amax(-1))  # options can leave nothing to choose from
    token_ids = torch.where(finite, chosen, NOT_FINITE).numpy()
    for state, token_id in zip(states, token_ids.tolist(), strict=True):
        if token_id >= 0:
            state.append(token_id)
    return Choice(token_ids, _chosen_logprobs(logits, token_ids, states))


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64: a hash of (seed, position), each step SplitMix64 (Steele et al., 2014).

    seeds uint64 [rows], positions integer [rows].
    """
    mixed = _splitmix(_splitmix(seeds) ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix(values: np.ndarray) -> np.ndarray:
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# --- steps 1 to 4 ---------------------------------------------------------------------------------------------------


def _adjusted(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Penalties, bias and held-back stop ids, written into `logits` [rows, vocab], which is returned."""
    penalized = [i for i, state in enumerate(states) if state.penalizes]
    if penalized:
        index = torch.tensor(penalized)
        logits[index] = _penalized(logits.index_select(0, index), [states[i] for i in penalized])
    for i, state in enumerate(states):
        if len(state.bias_ids):
            logits[i, state.bias_ids] += state.bias
        if state.holds_back_stop:
            logits[i, state.stop_ids] = float("-inf")
    return logits


def _penalized(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    options = [state.options for state in states]
    counts = torch.stack([state.counts for state in states if state.counts is not None])
    seen = torch.stack([state.in_prompt for state in states if state.in_prompt is not None]) | (counts > 0)
    repetition = _column([option.repetition_penalty for option in options], torch.float32)
    presence = _column([option.presence_penalty for option in options], torch.float32)
    frequency = _column([option.frequency_penalty for option in options], torch.float32)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen, repeated, logits) - presence * (counts > 0) - frequency * counts


def _column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


# --- steps 5 to 7 ---------------------------------------------------------------------------------------------------


def _choose(logits: Tensor, options: Sequence[SamplingOptions], positions: np.ndarray) -> Tensor:
    """Token ids int64 [rows]: the largest logit where the temperature is 0, else drawn."""
    chosen = logits.argmax(-1)
    rows = [i for i, option in enumerate(options) if option.temperature > 0]
    if not rows:
        return chosen
    index = torch.tensor(rows)
    some = [options[i] for i in rows]
    weights = _weights(logits.index_select(0, index), some)
    seeds = np.array([option.seed & 0xFFFF_FFFF_FFFF_FFFF for option in some], dtype=np.uint64)
    chosen[index] = _draw(weights, torch.from_numpy(uniform(seeds, positions[rows])))
    return chosen


def _weights(logits: Tensor, options: Sequence[SamplingOptions]) -> Tensor:
    """Unnormalized probabilities after temperature, top-k, top-p and min-p: float64 [rows, vocab], likeliest 1."""
    wide = logits.double()
    temperature = _column([option.temperature for option in options], torch.float64)
    weights = ((wide - wide.amax(-1, keepdim=True)) / temperature).exp_()
    vocab = weights.shape[1]
    least = _column([option.min_p for option in options], torch.float64)  # smallest weight that is kept
    limited = [i for i, option in enumerate(options) if 0 < option.top_k < vocab]
    if limited:
        index = torch.tensor(limited)
        kth = torch.tensor([options[i].top_k for i in limited]).unsqueeze(1) - 1
        largest = weights.index_select(0, index).topk(int(kth.max()) + 1, dim=-1).values
        floor = largest.gather(1, kth)
        least[index] = torch.maximum(least[index], floor)
        weights[index] = weights[index].masked_fill_(weights[index] < floor, 0.0)
    nucleus = [i for i, option in enumerate(options) if option.top_p < 1]
    if nucleus:
        index = torch.tensor(nucleus)
        shares = _column([options[i].top_p for i in nucleus], torch.float64)
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


# --- log-probabilities ----------------------------------------------------------------------------------------------


def _chosen_logprobs(logits: Tensor, token_ids: np.ndarray, states: Sequence[SamplingState]) -> list[ChosenLogprob]:
    rows = [i for i, state in enumerate(states) if state.options.logprobs is not None and token_ids[i] >= 0]
    if not rows:
        return []
    tops = [states[i].options.logprobs or 0 for i in rows]
    values, top = token_logprobs(logits.index_select(0, torch.tensor(rows)), token_ids[rows], tops)
    return [ChosenLogprob(*one) for one in zip(rows, values, top, strict=True)]


def token_logprobs(logits: Tensor, token_ids: np.ndarray, tops: Sequence[int]) -> tuple[list[float], list[TopTokens]]:
    """Natural log-probabilities of `token_ids` [rows] by `logits` [rows, vocab], and each row's `tops[i]` likeliest."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, torch.from_numpy(token_ids.astype(np.int64)).unsqueeze(1)).squeeze(1).tolist()
    most = min(max(tops, default=0), logits.shape[1])
    if most == 0:
        return own, [TopTokens([], []) for _ in own]
    values, ids = (tensor.tolist() for tensor in logprobs.topk(most, dim=-1))
    return own, [TopTokens(ids[i][:top], values[i][:top]) for i, top in enumerate(tops)]
