"""Turns a step's ragged shape into the plan arrays of FlashInfer, with pages of one token. Plain numpy.

Where entries share a prefix there are two levels: one reads each shared run once, for all queries of its group; the
other reads what is each entry's own. A query's two results are merged by their log-sum-exps, which gives attention over
both runs together (recursive attention, flashinfer.ai/2024/02/02/cascade-inference).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .base import AttentionBatch

MIN_SAVED = 16_384  # slots: reading fewer of them twice costs less than a second level's launches (an estimate)


@dataclass(frozen=True)
class PagedLevel:
    """One call over paged keys and values: b requests, each of so many queries over so many pages. All int32.

    qo_indptr, kv_indptr [b + 1]; kv_indices: pages, each a slot. last_page_len [b]: tokens in a request's last page.
    """

    qo_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    last_page_len: np.ndarray

    @property
    def longest(self) -> int:
        """The most queries that a request has."""
        return int(np.diff(self.qo_indptr).max(initial=0))


@dataclass(frozen=True)
class PagedPlan:
    """own: each entry's queries over its own slots, causal. shared: each group's queries over what the group shares,
    where every query sees every slot; None where nothing is shared.

    rows int64 [tokens]: the levels count queries in this order of the step's, None where that is the step's own. The
    shared level's queries are the first ones.
    """

    own: PagedLevel
    shared: PagedLevel | None
    rows: np.ndarray | None


def shares(batch: AttentionBatch) -> bool:
    """Whether the batch's groups are worth a level of their own."""
    return sum((len(group.entries) - 1) * group.length for group in batch.shared) >= max(MIN_SAVED, 1)


def one_query_each(batch: AttentionBatch) -> AttentionBatch:
    """The same attention with an entry for every query, over the slots that it sees; no groups."""
    starts, ends = batch.kv_indptr[:-1].tolist(), batch.kv_indptr[1:].tolist()
    counts = np.diff(batch.qo_indptr).tolist()
    lists = [
        batch.kv_indices[start : end - count + i + 1]
        for start, end, count in zip(starts, ends, counts, strict=True)
        for i in range(count)
    ]
    seen = _bounds(np.array([len(each) for each in lists]))
    return AttentionBatch(np.arange(len(lists) + 1, dtype=np.int32), seen, np.concatenate(lists))


def paged_plan(batch: AttentionBatch) -> PagedPlan:
    """The levels of a step with one entry at least."""
    if not shares(batch):
        return PagedPlan(_level(np.diff(batch.qo_indptr), np.diff(batch.kv_indptr), [batch.kv_indices]), None, None)
    entries = len(batch.qo_indptr) - 1
    skipped = np.zeros(entries, np.int32)  # positions of an entry that the shared level reads
    for group in batch.shared:
        skipped[list(group.entries)] = group.length
    grouped = [entry for group in batch.shared for entry in group.entries]
    order = np.array(grouped + np.setdiff1d(np.arange(entries), grouped).tolist())
    counts = np.diff(batch.qo_indptr)
    starts = batch.kv_indptr[:-1] + skipped
    own = _level(
        counts[order],
        (batch.kv_indptr[1:] - starts)[order],
        [batch.kv_indices[starts[entry] : batch.kv_indptr[entry + 1]] for entry in order.tolist()],
    )
    firsts = batch.kv_indptr[[group.entries[0] for group in batch.shared]].tolist()
    lengths = [group.length for group in batch.shared]
    shared = _level(
        np.array([counts[list(group.entries)].sum() for group in batch.shared]),
        np.array(lengths),
        [batch.kv_indices[first : first + length] for first, length in zip(firsts, lengths, strict=True)],
    )
    in_order = bool((order == np.arange(entries)).all())
    return PagedPlan(own, shared, None if in_order else _rows(batch.qo_indptr, order))


def _rows(qo_indptr: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The step's queries, entry by entry in this order."""
    return np.concatenate([np.arange(qo_indptr[entry], qo_indptr[entry + 1]) for entry in order.tolist()])


def _level(query_counts: np.ndarray, key_counts: np.ndarray, slots: Sequence[np.ndarray]) -> PagedLevel:
    return PagedLevel(
        qo_indptr=_bounds(query_counts),
        kv_indptr=_bounds(key_counts),
        kv_indices=slots[0] if len(slots) == 1 else np.concatenate(slots),
        last_page_len=np.ones(len(key_counts), np.int32),
    )


def _bounds(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
