"""Attention in plain torch operations: the reference backend, for any device that torch has.

Ragged entries of like shape are padded to rectangles; the padding slot (zeros) fills them up, so no slot that is not
the entry's own is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedModel
from ..execution.kv_pool import KVPool
from ..execution.transfer import to_device
from ..model.config import ModelConfig
from ..model.layers.activations import capped
from .base import Attention, AttentionBatch

WASTE = 1.25  # how much larger than its entries a rectangle may be, beyond
FREE_CELLS = 2048  # this many cells of (query, key), which cost less than one more group
GROUP_SLOTS = 2048  # slots gathered at once, unless one entry alone has more


@dataclass(frozen=True)
class _QueryGroup:
    """Entries computed together, padded to `count` rectangles of `queries` by `keys`.

    rows [count * queries]: rows of q (padding repeats the entry's last). slots [count * keys].
    mask: additive [count, 1, queries, keys], or None: everything is seen, or if `causal`, the square's lower triangle.
    kept: where the real rows are among the padded ones; None if all are real. targets: their rows in the output.
    """

    count: int
    rows: Tensor
    slots: Tensor
    mask: Tensor | None
    causal: bool
    kept: Tensor | None
    targets: Tensor


class TorchAttention(Attention):
    """See `Attention`. Every query sees its keys in one softmax, whatever else is in the batch."""

    name = "torch"

    def __init__(self, config: ModelConfig, pool: KVPool) -> None:
        super().__init__(config, pool)
        if pool.dtype.itemsize == 1:
            raise UnsupportedModel(f"the torch backend has no KV pool of {pool.dtype}; flashinfer, on a GPU, has")
        self._groups: dict[int, list[_QueryGroup]] = {}  # by window
        empty = torch.empty(0, config.kv_heads, config.head_dim, dtype=pool.dtype, device=pool.device)
        self._gathered = (empty, empty)  # K and V of one group; kept, since fresh memory costs more than the copy

    def plan(self, batch: AttentionBatch) -> None:
        self._groups = {window: self._grouped(batch, window) for window in self.windows}
        most = max((len(group.slots) for groups in self._groups.values() for group in groups), default=0)
        if most > len(self._gathered[0]):
            shape = (most, *self._gathered[0].shape[1:])
            self._gathered = (self._gathered[0].new_empty(shape), self._gathered[0].new_empty(shape))

    def _grouped(self, batch: AttentionBatch, window: int) -> list[_QueryGroup]:
        query_counts, key_counts = np.diff(batch.qo_indptr), np.diff(batch.kv_indptr)
        if window:  # what no query sees is not read
            key_counts = np.minimum(key_counts, query_counts + window - 1)
        order = np.lexsort((key_counts, query_counts))
        groups = _split(query_counts[order].tolist(), key_counts[order].tolist())
        squares = not self.config.score_cap
        return [
            _rectangle(batch, order[start:end], query_counts, key_counts, self.pool, window, squares=squares)
            for start, end in groups
        ]

    def run(self, layer: int, q: Tensor) -> Tensor:
        keys, values = self.pool.layer(layer)
        out = torch.empty_like(q)
        for group in self._groups[self.config.window(layer)]:
            attended = self._attend(
                group,
                _heads_first(q.index_select(0, group.rows), group.count),
                _heads_first(_gather(keys, group.slots, self._gathered[0]).to(q.dtype), group.count),
                _heads_first(_gather(values, group.slots, self._gathered[1]).to(q.dtype), group.count),
            )
            flat = attended.transpose(1, 2).reshape(-1, *q.shape[1:])
            out.index_copy_(0, group.targets, flat if group.kept is None else flat.index_select(0, group.kept))
        return out

    def _attend(self, group: _QueryGroup, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [count, heads, queries, head_dim]; k, v [count, kv_heads, keys, head_dim] -> as q."""
        scale, cap = self.config.attention_scale, self.config.score_cap
        if not cap:
            mask = None if group.mask is None else group.mask.to(q.dtype)
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=group.causal, scale=scale, enable_gqa=True
            )
        queries = q.shape[2]
        sharing = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # [count, kv_heads, sharing heads * queries, head_dim]
        scores = capped((sharing @ k.transpose(2, 3)).float().mul_(scale), cap).unflatten(2, (-1, queries))
        if group.mask is not None:
            scores += group.mask.unsqueeze(1)
        weights = scores.softmax(-1).to(q.dtype).flatten(2, 3)
        return (weights @ v).unflatten(2, (-1, queries)).flatten(1, 2)


def _gather(tensor: Tensor, slots: Tensor, buffer: Tensor) -> Tensor:
    """Slots of [n, kv_heads, head_dim], written to the front of `buffer`."""
    return torch.index_select(tensor, 0, slots, out=buffer[: len(slots)])


def _heads_first(rows: Tensor, count: int) -> Tensor:
    """[count * n, heads, head_dim] as [count, heads, n, head_dim]."""
    return rows.view(count, -1, *rows.shape[1:]).transpose(1, 2)


def _split(query_counts: list[int], key_counts: list[int]) -> list[tuple[int, int]]:
    """Cuts entries, sorted by (queries, keys), into runs [start, end) that fill their rectangle well."""
    groups: list[tuple[int, int]] = []
    start, cells, widest = 0, 0, 0
    for i, (queries, keys) in enumerate(zip(query_counts, key_counts, strict=True)):
        count = i + 1 - start
        wider = max(widest, keys)
        padded = count * queries * wider  # the last one has the most queries
        filled = cells + queries * keys
        if count > 1 and (padded > WASTE * filled + FREE_CELLS or count * wider > GROUP_SLOTS):
            groups.append((start, i))
            start, filled, wider = i, queries * keys, keys
        cells, widest = filled, wider
    if query_counts:
        groups.append((start, len(query_counts)))
    return groups


def _rectangle(
    batch: AttentionBatch,
    entries: np.ndarray,
    query_counts: np.ndarray,
    key_counts: np.ndarray,
    pool: KVPool,
    window: int,
    *,
    squares: bool,
) -> _QueryGroup:
    """Entries that fill one rectangle. key_counts: how many of an entry's slots are read, its last ones. squares:
    whether one that needs no more than the triangle may go without a mask."""
    own_queries, own_keys = query_counts[entries][:, None], key_counts[entries][:, None]
    queries, keys = np.arange(own_queries.max())[None], np.arange(own_keys.max())[None]
    rows = batch.qo_indptr[entries][:, None] + np.minimum(queries, own_queries - 1)
    places = batch.kv_indptr[entries + 1][:, None] - own_keys + np.minimum(keys, own_keys - 1)
    slots = np.where(keys < own_keys, batch.kv_indices[places], pool.padding_slot)
    last_seen = own_keys - own_queries + np.minimum(queries, own_queries - 1)  # [count, queries]
    real = queries < own_queries
    count = len(entries)
    padded_keys = bool((own_keys != keys.size).any())
    narrow = 0 < window < queries.size  # some query does not see as far back as another
    square = squares and count == 1 and queries.size == keys.size and not narrow
    mask = None
    if not square and (padded_keys or queries.size > 1):
        seen = keys[None] <= last_seen[:, :, None]
        if window:
            seen &= keys[None] > last_seen[:, :, None] - window
        seen = to_device(seen, pool.device).unsqueeze(1)
        mask = torch.zeros(seen.shape, device=pool.device).masked_fill_(~seen, float("-inf"))
    return _QueryGroup(
        count=count,
        rows=_index(rows, pool),
        slots=_index(slots, pool),
        mask=mask,
        causal=square,
        kept=None if real.all() else _index(np.flatnonzero(real), pool),
        targets=_index(rows[real], pool),
    )


def _index(array: np.ndarray, pool: KVPool) -> Tensor:
    return to_device(array.reshape(-1).astype(np.int64, copy=False), pool.device)
