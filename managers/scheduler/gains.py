"""What one step gave to each of its entries, unpacked from the worker's message."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..messages import Guided, SampledLogprob, Scored, StepResult, unpack_ids

NOT_FINITE = -2  # a count in StepResult


@dataclass
class Gain:
    """One entry's new tokens, with a log-probability for each where wanted, and what its grammar did."""

    token_ids: list[int]
    not_finite: bool = False
    logprobs: list[SampledLogprob] = field(default_factory=list)
    scored: Scored | None = None
    guided: Guided | None = None

    def accepted(self, draft: np.ndarray) -> int:
        """How many of the guesses `draft` came true."""
        count = 0
        for guess, token_id in zip(draft.tolist(), self.token_ids):
            if guess != token_id:
                break
            count += 1
        return count


def gains(result: StepResult, entries: int) -> list[Gain]:
    """The gains of a step's `entries`, in their order."""
    token_ids = unpack_ids(result.token_ids).tolist()
    found, place = [], 0
    for count in unpack_ids(result.counts).tolist():
        end = place + max(count, 0)
        found.append(Gain(token_ids[place:end], not_finite=count == NOT_FINITE))
        place = end
    if len(found) != entries or place != len(token_ids):
        raise RuntimeError(f"the worker answered {len(found)} entries, {len(token_ids)} tokens, for {entries} entries")
    for logprob in result.logprobs:
        found[logprob.entry].logprobs.append(logprob)
    for scored in result.scored:
        found[scored.entry].scored = scored
    for guided in result.guided:
        found[guided.entry].guided = guided
    return found
