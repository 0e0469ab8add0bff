"""Token counts as OpenAI's clients read them, the same on every endpoint."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from ..wire.answers import Effort


class PromptDetails(msgspec.Struct, frozen=True):
    """cached_tokens: prompt tokens that earlier work had computed."""

    cached_tokens: int


class EffortCounts(msgspec.Struct, frozen=True):
    """What completions took. forward_passes: steps of the model that computed tokens of one of them. speculated_tokens,
    accepted_tokens: guessed ahead, and those of them that turned out right. forced_tokens: the only ones that the
    constraint left, which were not sampled. drafted_tokens: the old name of speculated_tokens, for one release."""

    forward_passes: int
    speculated_tokens: int
    accepted_tokens: int
    forced_tokens: int
    drafted_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """OpenAI's own fields, and `sapwood`, which says more. reasoning_tokens: those before the answer."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    sapwood: EffortCounts


class Usage(msgspec.Struct, frozen=True):
    """A prompt counts once, however many samples it has; a list of prompts is summed.

    Scoring sums over the continuations, each a prompt of its own that mostly finds itself cached. The completions'
    details are summed over the samples that have ended; absent before the first has.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


def effort_counts(effort: Effort) -> EffortCounts:
    return EffortCounts(effort.forward_passes, effort.speculated, effort.accepted, effort.forced, effort.speculated)


def completion_details(efforts: Iterable[Effort], reasoning_tokens: int) -> CompletionDetails | UnsetType:
    """The sum of what these samples took."""
    counts = [effort_counts(effort) for effort in efforts]
    if not counts:
        return UNSET
    names = EffortCounts.__struct_fields__
    total = EffortCounts(*(sum(getattr(each, name) for each in counts) for name in names))
    rejected = total.speculated_tokens - total.accepted_tokens
    return CompletionDetails(reasoning_tokens, total.accepted_tokens, rejected, total)
