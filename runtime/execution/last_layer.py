"""What rows want of the last layer at their prompts' positions, from the hidden states of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..records import TopLogprobs
from ..sampling.sampler import token_logprobs
from ..wanted import HiddenStates, PromptAnswer, PromptLogprobs, Wanted
from .ranks import Ranks

PIECE = 128  # positions whose logits over the whole vocabulary exist at one time


@dataclass(frozen=True)
class Span:
    """Prompt positions of one entry, from `first` on, of which something is wanted; `targets` are their tokens.

    base: the row of the step whose hidden state is about position `first`; the next ones follow it.
    """

    entry: int
    first: int
    base: int
    targets: np.ndarray
    wanted: Wanted

    @property
    def rows(self) -> np.ndarray:
        return self.base + np.arange(len(self.targets))


def span_of(wanted: Wanted, prompt_ids: np.ndarray, entry: int, start: int, length: int, base: int) -> Span | None:
    """What of it an entry can tell that feeds positions [start, start + length), as rows of the step from `base` on;
    None where it is nothing."""
    first = max(wanted.start, start + wanted.lag)
    end = min(start + length + wanted.lag, len(prompt_ids))
    if first >= end:
        return None
    return Span(entry, first, base + first - wanted.lag - start, prompt_ids[first:end], wanted)


def answers(
    spans: Sequence[Span], hidden: Tensor, places: np.ndarray, logits_of: Callable[[Tensor], Tensor], ranks: Ranks
) -> list[PromptAnswer | None]:
    """What each span is about; None where that is not finite.

    hidden: rows whose numbers in the step are `places`. logits_of: float32 [rows, vocab] of such rows.
    """
    found: list[PromptAnswer | None] = []
    for span in spans:
        at = int(np.searchsorted(places, span.base))
        own = hidden[at : at + len(span.targets)]
        found.append(_logprobs(own, span, logits_of, ranks) if span.wanted.kind == "logprobs" else _states(own, span))
    return found


def _logprobs(hidden: Tensor, span: Span, logits_of: Callable[[Tensor], Tensor], ranks: Ranks) -> PromptLogprobs | None:
    logprobs: list[float] = []
    tops: list[TopLogprobs] = []
    for start in range(0, len(span.targets), PIECE):
        piece = span.targets[start : start + PIECE]
        logits = logits_of(hidden[start : start + PIECE])
        if ranks.leads:
            values, likeliest = token_logprobs(logits, piece, [span.wanted.top] * len(piece))
            logprobs += values
            tops += likeliest
    return PromptLogprobs(span.first, logprobs, tops) if np.isfinite(logprobs).all() else None


def _states(hidden: Tensor, span: Span) -> HiddenStates | None:
    values = hidden.float().cpu().numpy()
    packed = np.ascontiguousarray(values, "<f4").tobytes()
    return HiddenStates(span.first, values.shape[1], packed) if np.isfinite(values).all() else None
