"""What an executor is asked to do in one step, and what it answers. Plain data.

The requests are protocols: `managers.wire.steps` has structs of the same attributes, which pass straight through.
Arrays travel as packed little-endian int32 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .sampling.sampler import ChosenLogprob, SamplingOptions, TopTokens


class RowOpening(Protocol):
    """A sequence takes a row. prompt_ids, output_ids: packed ids; `output_ids` is what it had generated before.

    score_start: prompt positions from here on (never 0) want the log-probability of their token, with the `score_top`
    likeliest alternatives; None for none.
    """

    @property
    def row(self) -> int: ...
    @property
    def sampling(self) -> SamplingOptions: ...
    @property
    def stop_ids(self) -> Sequence[int]: ...
    @property
    def prompt_ids(self) -> bytes: ...
    @property
    def output_ids(self) -> bytes: ...
    @property
    def score_start(self) -> int | None: ...
    @property
    def score_top(self) -> int: ...


class RowSlots(Protocol):
    """Positions [start, start + n) of a row live in `slots` (packed, n of them)."""

    @property
    def row(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def slots(self) -> bytes: ...


class SharedSlots(Protocol):
    """Entries of the step whose sequences begin with the same `length` slots."""

    @property
    def entries(self) -> Sequence[int]: ...
    @property
    def length(self) -> int: ...


class RowEdit(Protocol):
    """What a sampled token did to a guided row's completion; `constrained.matching.interface.Edit` says it in full."""

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


class RowGuide(Protocol):
    """Says which tokens a row may choose from next; `constrained.matching.interface.Guide` says it in full."""

    def fill(self, bitmask: np.ndarray) -> None:
        """Sets bit i % 32 of int32 word i // 32 for every allowed token i; given all zero, for the whole vocabulary."""
        ...

    def advance(self, token_id: int) -> RowEdit:
        """Takes the sampled token."""
        ...


class Step(Protocol):
    """One step of B entries, done in the order of the attributes; `managers.wire.steps.StepPlan` says it in full.

    rows, starts, lengths: packed [B]. token_ids, slots: packed [sum(lengths)]; a token id of -1 stands for what the
    row sampled last. sample: one byte for each entry. speculated: packed [B], how many of the entry's last tokens are
    guesses; empty where none are.
    """

    @property
    def poison(self) -> bytes: ...
    @property
    def closed(self) -> Sequence[int]: ...
    @property
    def opened(self) -> Sequence[RowOpening]: ...
    @property
    def slot_writes(self) -> Sequence[RowSlots]: ...
    @property
    def rows(self) -> bytes: ...
    @property
    def starts(self) -> bytes: ...
    @property
    def lengths(self) -> bytes: ...
    @property
    def token_ids(self) -> bytes: ...
    @property
    def slots(self) -> bytes: ...
    @property
    def sample(self) -> bytes: ...
    @property
    def shared(self) -> Sequence[SharedSlots]: ...
    @property
    def speculated(self) -> bytes: ...


@dataclass(frozen=True)
class ScoredRun:
    """Log-probabilities of the prompt tokens of entry `entry` at positions start, start + 1, …; `top` is as long."""

    entry: int
    start: int
    logprobs: list[float]
    top: list[TopTokens]


@dataclass(frozen=True)
class GuidedRun:
    """What its guide did to the row of entry `entry` in the whole step, beside the tokens gained.

    rewind: so many of the completion's last tokens go first. forced: how many of the new ones were not sampled.
    held, complete, failure: as in the last edit.
    """

    entry: int
    rewind: int
    forced: int
    held: int
    complete: bool
    failure: str


@dataclass(frozen=True)
class StepOutput:
    """counts int32 [B]: how many tokens an entry gained, NOT_FINITE where its logits were not finite.

    token_ids: int32, the entries' new tokens one after the other. logprobs: for the new tokens of the rows that want
    them; their `row` is the entry's number in the step.
    """

    counts: np.ndarray
    token_ids: np.ndarray
    logprobs: list[ChosenLogprob]
    scored: list[ScoredRun]
    guided: list[GuidedRun]


def unpack(data: bytes) -> np.ndarray:
    """Packed int32 bytes as a read-only array."""
    return np.frombuffer(data, dtype="<i4")
