"""Samples a step's rows: one token each, and more where guesses come true or a guide forces text.

Every position is sampled exactly as it would be alone, one after the other, so guesses change nothing but speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from ..kernels.sampling import NativeSampler
from ..step import GuidedRun, RowGuide
from .sampler import NOT_FINITE, ChosenLogprob, sample
from .state import SamplingState

ALL_ALLOWED = -1  # a bitmask word


@dataclass
class Turn:
    """One entry's part in the sampling of a step.

    first: the row of the logits from which its first token is chosen; the rows behind it are those of the guesses
    `guesses`. position: the index, in its sequence, of that first token. completion: what the row has generated, which
    only a guided row keeps.
    """

    entry: int
    state: SamplingState
    first: int
    position: int
    guesses: list[int]
    guide: RowGuide | None
    completion: list[int]
    gained: list[int] = field(default_factory=list)
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    finite: bool = True
    rewind: int = 0
    forced: int = 0
    held: int = 0
    complete: bool = False
    failure: str = ""

    def take(self, token_id: int, logprob: ChosenLogprob | None) -> bool:
        """Takes the token sampled next; whether another one can be sampled in this step."""
        if token_id == NOT_FINITE:
            self.finite = False
            return False
        if self.guide is None:
            self.gained.append(token_id)
        else:
            self._follow(self.guide, token_id)
        if logprob is not None and len(self.gained) > len(self.logprobs):
            self.logprobs.append(replace(logprob, row=self.entry))
        known = len(self.gained)
        goes_on = not (self.rewind or self.complete or self.failure) and 0 < known <= len(self.guesses)
        return goes_on and self.gained == self.guesses[:known]

    def _follow(self, guide: RowGuide, token_id: int) -> None:
        """Does to the row what its guide makes of the token, which the sampler has recorded already."""
        edit = guide.advance(token_id)
        self.held, self.complete, self.failure = edit.held, edit.complete, edit.failure
        self.state.remove(token_id)
        for _ in range(edit.rewind):
            self.state.remove(self.completion.pop())
            if self.gained:
                self.gained.pop()
            else:
                self.rewind += 1
        del self.logprobs[len(self.gained) :]
        for new in edit.token_ids:
            self.state.append(new)
        self.completion.extend(edit.token_ids)
        self.gained.extend(edit.token_ids)
        self.forced += max(len(edit.token_ids) - 1, 0)

    @property
    def run(self) -> GuidedRun:
        return GuidedRun(self.entry, self.rewind, self.forced, self.held, self.complete, self.failure)


def bitmasks(turns: Sequence[Turn], vocab_size: int) -> np.ndarray | None:
    """What each turn may choose from next, int32 [turns, ceil(vocab / 32)]; None where everything is allowed."""
    if all(turn.guide is None for turn in turns):
        return None
    masks = np.full((len(turns), -(-vocab_size // 32)), ALL_ALLOWED, np.int32)
    for turn, mask in zip(turns, masks, strict=True):
        if turn.guide is not None:
            mask[:] = 0
            turn.guide.fill(mask)
    return masks


def play(turns: Sequence[Turn], logits: Tensor, masks: np.ndarray | None, kernels: NativeSampler | None) -> None:
    """Samples for all turns, round by round. masks: `bitmasks` of the turns. logits: float32 [rows, vocab]."""
    while turns:
        rows = np.array([turn.first + len(turn.gained) for turn in turns])
        positions = np.array([turn.position + len(turn.gained) for turn in turns])
        some = logits if len(rows) == len(logits) else logits[rows]
        choice = sample(some, [turn.state for turn in turns], positions, masks, kernels)
        logprobs = {each.row: each for each in choice.logprobs}
        token_ids = choice.token_ids.tolist()
        turns = [turn for i, turn in enumerate(turns) if turn.take(token_ids[i], logprobs.get(i))]
        masks = bitmasks(turns, logits.shape[1])
