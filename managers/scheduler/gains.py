"""What one step gave to each of its entries, unpacked from the worker's message."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...runtime.records import unpack_ids
from ..wire.answers import Finish
from ..wire.steps import Guided, SampledLogprob, Scored, StepResult
from .request import Request

NOT_FINITE = -2  # a count in StepResult


@dataclass
class Gain:
    """One entry's new tokens, with a log-probability for each where wanted, and what its grammar did."""

    token_ids: list[int]
    not_finite: bool = False
    logprobs: list[SampledLogprob] = field(default_factory=list)
    scored: Scored | None = None
    guided: Guided | None = None

    def accepted(self, guesses: np.ndarray) -> int:
        """How many of `guesses` came true."""
        count = 0
        for guess, token_id in zip(guesses.tolist(), self.token_ids):
            if guess != token_id:
                break
            count += 1
        return count

    @property
    def forced(self) -> int:
        """How many of the new tokens the grammar forced."""
        return self.guided.forced if self.guided is not None else 0

    def take_into(self, request: Request, accepted: int) -> tuple[Finish | None, int]:
        """Make the gain part of the request. accepted: of the guesses that were computed for it.

        Returns why the completion ends with it, None if it goes on; and how many leading positions of the sequence, as
        it is now, have been computed for the right tokens.
        """
        guided = self.guided
        if guided is not None:
            request.rewind(guided.rewind)
            if guided.rewind:
                accepted = 0
        start, taken, finish = request.known, 0, None
        while finish is None and taken < len(self.token_ids):
            finish = request.append(self.token_ids[taken])
            taken += 1
        request.keep_logprobs(self.logprobs[:taken])
        right = start + min(accepted, taken)
        if guided is None:
            return finish, right
        request.held = min(guided.held, request.produced)
        if guided.failure:
            return Finish("error", message=guided.failure, fault="request"), right
        if guided.complete and taken == len(self.token_ids) and (finish is None or finish.reason == "length"):
            return Finish("stop"), right
        return finish, right


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
