"""Samples a step's rows in rounds: one token each, and more where guesses come true or a grammar forces text.

Every position is sampled exactly as it would be alone, one after the other, so guesses change nothing but speed. What
goes wrong in one row's matcher ends that row's part only, and never leaves this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from ..kernels.sampling import NativeSampler
from ..step import EntryResult, Failure, GrammarEdit, SampledLogprob
from .sampler import NOT_FINITE, sample
from .sampling_state import SamplingState

ALL_ALLOWED = -1  # a bitmask word


class TokenEdit(Protocol):
    """What a sampled token did to its row's completion; `constrained.matching.interface.Edit` says it in full."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def rewind(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def failure(self) -> str: ...


class RowMatcher(Protocol):
    """Says which tokens a row may choose from next. What it raises ends the row's request, and nothing else."""

    def fill(self, bitmask: np.ndarray) -> None:
        """Sets bit i % 32 of int32 word i // 32 for every allowed token i; given all zero, for the whole vocabulary."""
        ...

    def advance(self, token_id: int) -> TokenEdit:
        """Takes the sampled token."""
        ...


@dataclass
class SamplingRounds:
    """One entry's sampling in a step, round by round.

    first: the row of the logits from which its first token is chosen; the rows behind it are those of `guesses`.
    position: the index, in its sequence, of that first token. completion: what the row has generated, which only a row
    with a matcher keeps.
    """

    entry: int
    state: SamplingState
    first: int
    position: int
    guesses: list[int]
    matcher: RowMatcher | None
    completion: list[int]
    gained: list[int] = field(default_factory=list)
    logprobs: list[SampledLogprob] = field(default_factory=list)
    rewind: int = 0
    forced: int = 0
    held: int = 0
    complete: bool = False
    failure: Failure | None = None

    def take(self, token_id: int, logprob: SampledLogprob | None) -> bool:
        """Takes the token sampled next; whether another one can be sampled in this step."""
        if token_id == NOT_FINITE:
            self.failure = Failure("not finite")
        if self.failure is not None:
            return False
        if self.matcher is None:
            self.gained.append(token_id)
        else:
            try:
                self._follow(self.matcher, token_id)
            except BaseException as error:
                self.failure = matcher_failed(error)
        if logprob is not None and len(self.gained) > len(self.logprobs):
            self.logprobs.append(logprob)
        known = len(self.gained)
        goes_on = not (self.rewind or self.complete or self.failure) and 0 < known <= len(self.guesses)
        return goes_on and self.gained == self.guesses[:known]

    def _follow(self, matcher: RowMatcher, token_id: int) -> None:
        """Does to the row what its matcher makes of the token, which the sampler has recorded already."""
        self.state.remove(token_id)
        edit = matcher.advance(token_id)
        self.held, self.complete = edit.held, edit.complete
        self.failure = Failure("grammar", edit.failure) if edit.failure else None
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

    def fill(self, bitmask: np.ndarray) -> None:
        """Writes which tokens may come next; a row whose matcher fails may choose any, since it ends."""
        bitmask[:] = 0 if self.matcher is not None else ALL_ALLOWED
        if self.matcher is not None:
            try:
                self.matcher.fill(bitmask)
            except BaseException as error:
                self.failure = matcher_failed(error)
                bitmask[:] = ALL_ALLOWED

    @property
    def result(self) -> EntryResult:
        """What came of it. Where logits were not finite, nothing else counts."""
        if self.failure is not None and self.failure.kind == "not finite":
            return EntryResult(failure=self.failure)
        edit = None
        if self.matcher is not None:
            edit = GrammarEdit(self.rewind, self.forced, self.held, self.complete)
        return EntryResult(self.gained, self.logprobs, edit=edit, failure=self.failure)


def matcher_failed(error: BaseException) -> Failure:
    """What is said of an error in a row's matcher. Engines in Rust raise their panics as bare BaseExceptions; those
    that mean the process go on."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return Failure("matcher", f"{type(error).__name__}: {error}")


def bitmasks(rounds: Sequence[SamplingRounds], vocab_size: int) -> np.ndarray | None:
    """What each may choose from next, int32 [rounds, ceil(vocab / 32)]; None where everything is allowed."""
    if all(each.matcher is None for each in rounds):
        return None
    masks = np.empty((len(rounds), -(-vocab_size // 32)), np.int32)
    for each, mask in zip(rounds, masks, strict=True):
        each.fill(mask)
    return masks


def sample_rounds(
    rounds: Sequence[SamplingRounds], logits: Tensor, masks: np.ndarray | None, kernels: NativeSampler | None
) -> None:
    """Samples for all of them until none goes on. masks: their `bitmasks`. logits: float32 [rows, vocab]."""
    while rounds:
        rows = np.array([each.first + len(each.gained) for each in rounds])
        positions = np.array([each.position + len(each.gained) for each in rounds])
        some = logits if len(rows) == len(logits) else logits[rows]
        choice = sample(some, [each.state for each in rounds], positions, masks, kernels)
        chosen = zip(rounds, choice.token_ids.tolist(), choice.logprobs, strict=True)
        rounds = [each for each, token_id, logprob in chosen if each.take(token_id, logprob)]
        masks = bitmasks(rounds, logits.shape[1])
