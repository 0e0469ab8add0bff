"""Decode steps as CUDA graphs: captured once for a ladder of batch sizes, then replayed with one launch each.

A step runs on the next larger graph. What it does not fill is padding: tokens that attend to the pool's padding slot
alone, and whose keys and values go there, where the backends that use graphs never look otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBatch
from ..model.layers.self_attention import AttentionStep
from .kv_pool import KVPool
from .transfer import to_device

WARM_UPS = 2  # runs before a capture: kernels are compiled and their libraries make their workspaces in the first one
FULLY_SHARED = 2  # graphs hold the slot lists of steps that attend to so many times the pool's slots

Hidden = Callable[[Tensor, Tensor, AttentionStep], Tensor]
Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Replay]]


@runtime_checkable
class FixedAttention(Protocol):
    """Attention whose plan can live at addresses that stay; see `attention.flashinfer.FlashInferAttention`."""

    def shares(self, batch: AttentionBatch) -> bool: ...
    def reserve(self, sizes: list[int], most_slots: int) -> None: ...
    def plan_fixed(self, batch: AttentionBatch) -> None: ...


@dataclass(frozen=True)
class _CapturedGraph:
    """inputs: int64 [3, size]: token ids, positions, slots. hidden [size, width]. Both are the graph's own memory."""

    inputs: Tensor
    hidden: Tensor
    replay: Replay


def ladder(most: int) -> list[int]:
    """The batch sizes that are captured for up to `most` entries: padding is below a quarter from 16 on."""
    sizes = [size for size in (1, 2, 4, 8, 12, 16) if size < most]
    while sizes and sizes[-1] >= 16 and (wider := sizes[-1] + max(8, sizes[-1] // 4 // 8 * 8)) < most:
        sizes.append(wider)
    return [*sizes, most]


class DecodeGraphs:
    """The graphs of one model over one KV pool."""

    def __init__(
        self,
        attention: FixedAttention,
        pool: KVPool,
        hidden: Hidden,
        attending: Callable[[Tensor], AttentionStep],
        *,
        most: int,
        capture: Capture,
        progress: Callable[[str], None],
    ) -> None:
        """Captures them all. attending: the attention of a step whose tokens go to such slots. most: entries of a step.

        capture: records a function; gives its result and what runs it again, into that same result.
        """
        self._attention = attention
        self._pool = pool
        self._sizes = ladder(most)
        self._most_slots = FULLY_SHARED * pool.slots + most
        attention.reserve(self._sizes, self._most_slots)
        self._graphs: dict[int, _CapturedGraph] = {}
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            progress(f"capturing a CUDA graph for {size} sequences")
            inputs = torch.zeros(3, size, dtype=torch.int64, device=pool.device)
            inputs[2] = pool.padding_slot
            attention.plan_fixed(self._padded(_no_entries(), size))

            def run(inputs: Tensor = inputs) -> Tensor:
                return hidden(inputs[0], inputs[1], attending(inputs[2]))

            for _ in range(WARM_UPS):
                run()
            result, replay = capture(run)
            self._graphs[size] = _CapturedGraph(inputs, result, replay)

    def fits(self, batch: AttentionBatch) -> bool:
        """Whether a graph computes such a step: a decode of no more entries and slots than were captured for."""
        entries = len(batch.kv_indptr) - 1
        return (
            0 < entries == batch.qo_indptr[-1] <= self._sizes[-1]
            and batch.kv_indptr[-1] + self._sizes[-1] <= self._most_slots
            and not self._attention.shares(batch)
        )

    def run(self, batch: AttentionBatch, inputs: np.ndarray, resolve: Callable[[Tensor], Tensor]) -> Tensor:
        """The hidden states of a step that `fits`, [entries, width], until the next call.

        inputs: int64 [3, entries]: token ids, positions, slots. resolve: makes token ids of what stands for them.
        """
        entries = inputs.shape[1]
        size = self._sizes[bisect_left(self._sizes, entries)]
        self._attention.plan_fixed(self._padded(batch, size))
        graph = self._graphs[size]
        padded = np.zeros((3, size), np.int64)
        padded[2] = self._pool.padding_slot
        padded[:, :entries] = inputs
        graph.inputs.copy_(to_device(padded, self._pool.device), non_blocking=True)
        graph.inputs[0].copy_(resolve(graph.inputs[0]))
        graph.replay()
        return graph.hidden[:entries]

    def _padded(self, batch: AttentionBatch, size: int) -> AttentionBatch:
        """The batch with entries of one query over the padding slot, up to `size` of them."""
        missing = size - (len(batch.kv_indptr) - 1)
        more = np.arange(1, missing + 1, dtype=np.int32)
        return AttentionBatch(
            np.arange(size + 1, dtype=np.int32),
            np.concatenate((batch.kv_indptr, batch.kv_indptr[-1] + more)),
            np.concatenate((batch.kv_indices, np.full(missing, self._pool.padding_slot, np.int32))),
        )


class CudaCapture:
    """Records functions as CUDA graphs that share one pool of memory: only one of their results is good at a time."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = function()
        return result, graph.replay


def _no_entries() -> AttentionBatch:
    return AttentionBatch(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(0, np.int32))
