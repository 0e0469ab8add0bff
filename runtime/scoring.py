"""The log-probabilities of prompt tokens that a request asks for, from the hidden states of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .ranks import Ranks
from .records import TopLogprobs
from .runner import Runner
from .sampling.sampler import token_logprobs
from .step import PromptLogprobs

SCORE_PIECE = 128  # positions whose logits over the whole vocabulary exist at one time


@dataclass(frozen=True)
class ScoredSpan:
    """Prompt positions of one entry, from `first` on, whose tokens `targets` are to be scored.

    base: the row of the step whose hidden state predicts position `first`; the next ones follow it.
    """

    entry: int
    first: int
    base: int
    targets: np.ndarray
    top: int


@dataclass(frozen=True)
class WantedScores:
    """What a row wants scored: its prompt from position `start` on, each with the `top` likeliest tokens there."""

    prompt_ids: np.ndarray
    start: int
    top: int

    def span(self, entry: int, start: int, length: int, base: int) -> ScoredSpan | None:
        """What of it an entry predicts that feeds positions [start, start + length), as rows of the step from `base`
        on; None where it is nothing."""
        first = max(self.start, start + 1)
        end = min(start + length + 1, len(self.prompt_ids))
        if first >= end:
            return None
        return ScoredSpan(entry, first, base + first - 1 - start, self.prompt_ids[first:end], self.top)


def score(
    spans: list[ScoredSpan], hidden: Tensor, places: np.ndarray, runner: Runner, ranks: Ranks
) -> list[PromptLogprobs | None]:
    """Log-probabilities of the wanted prompt tokens of each span; None where its logits are not finite.

    hidden: rows whose numbers in the step are `places`.
    """
    scored: list[PromptLogprobs | None] = []
    for span in spans:
        at = int(np.searchsorted(places, span.base))
        run = _scored_run(hidden[at : at + len(span.targets)], span, runner, ranks)
        scored.append(None if run is None else PromptLogprobs(span.first, *run))
    return scored


def _scored_run(
    hidden: Tensor, span: ScoredSpan, runner: Runner, ranks: Ranks
) -> tuple[list[float], list[TopLogprobs]] | None:
    logprobs: list[float] = []
    tops: list[TopLogprobs] = []
    for start in range(0, len(span.targets), SCORE_PIECE):
        piece = span.targets[start : start + SCORE_PIECE]
        logits = runner.logits(hidden[start : start + SCORE_PIECE])
        if ranks.leads:
            values, likeliest = token_logprobs(logits, piece, [span.top] * len(piece))
            logprobs += values
            tops += likeliest
    return (logprobs, tops) if np.isfinite(logprobs).all() else None
