"""Steps of several sequences, and a plain attention to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.runtime.attention.base import SharedPrefix
from sapwood.runtime.execution.runner import ModelStep


@dataclass(frozen=True)
class Tokens:
    """Token ids and the slots they live in, int32 [length] each."""

    token_ids: np.ndarray
    slots: np.ndarray


@dataclass(frozen=True)
class Part:
    """Positions [start, end) of a sequence, to be computed in a step."""

    sequence: Tokens
    start: int
    end: int


def bounds(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def step_of(parts: Sequence[Part], shared: Sequence[SharedPrefix] = (), last_only: bool = False) -> ModelStep:
    """The step that computes these parts and gives the hidden states of all tokens, or of each part's last."""
    lengths = [part.end - part.start for part in parts]
    indptr = bounds(lengths)
    return ModelStep(
        token_ids=np.concatenate([part.sequence.token_ids[part.start : part.end] for part in parts]),
        positions=np.concatenate([np.arange(part.start, part.end) for part in parts]).astype(np.int32),
        slots=np.concatenate([part.sequence.slots[part.start : part.end] for part in parts]),
        qo_indptr=indptr,
        kv_indptr=bounds([part.end for part in parts]),
        kv_indices=np.concatenate([part.sequence.slots[: part.end] for part in parts]),
        output_rows=(indptr[1:] - 1 if last_only else np.arange(sum(lengths))).astype(np.int32),
        shared=shared,
    )


def plain_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, step: ModelStep) -> np.ndarray:
    """The same in float64, a query at a time. q [tokens, heads, dim]; keys and values [slots, kv_heads, dim]."""
    out = np.zeros(q.shape, np.float64)
    share = q.shape[1] // keys.shape[1]
    for b in range(len(step.qo_indptr) - 1):
        slots = step.kv_indices[step.kv_indptr[b] : step.kv_indptr[b + 1]]
        begin, end = step.qo_indptr[b], step.qo_indptr[b + 1]
        for i in range(begin, end):
            seen = slots[: len(slots) - (end - begin) + (i - begin) + 1]
            for head in range(q.shape[1]):
                k, v = (pool[seen, head // share].astype(np.float64) for pool in (keys, values))
                scores = k @ q[i, head].astype(np.float64) / np.sqrt(q.shape[2])
                weights = np.exp(scores - scores.max())
                out[i, head] = weights @ v / weights.sum()
    return out
