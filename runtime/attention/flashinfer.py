"""Attention with FlashInfer's kernels, for CUDA devices. FlashInfer is imported when the backend is made, never before.

The KV pool is FlashInfer's paged form as it stands: a slot is a page of one token, in the NHD layout.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedModel
from ..execution.kv_pool import KVPool
from ..execution.transfer import to_device
from ..model.config import ModelConfig
from .base import Attention, AttentionBatch
from .paging import PagedLevel, PagedPlan, one_query_each, paged_plan, shares

WORKSPACE_BYTES = 128 << 20  # what FlashInfer recommends for the partial results of split runs
KERNELS = "fa2"  # one family of kernels on every GPU, for prefill, extend, decode and shared prefixes alike
LAYOUT = "NHD"
HEAD_DIMS = (64, 128, 256)
QUERY_TYPES = (torch.bfloat16, torch.float16)
KV_TYPES = (*QUERY_TYPES, torch.float8_e4m3fn)
MISSING = "the package flashinfer-python is not installed (pip install 'sapwood[cuda]')"


def is_installed() -> bool:
    """Whether FlashInfer could be imported; imports nothing."""
    return importlib.util.find_spec("flashinfer") is not None


def why_not(config: ModelConfig, dtype: torch.dtype) -> str:
    """Why this backend cannot compute such a model in activations of `dtype`; "" where it can."""
    if dtype not in QUERY_TYPES:
        return f"FlashInfer computes in bfloat16 or float16, not {str(dtype).removeprefix('torch.')}"
    if config.head_dim not in HEAD_DIMS:
        return f"FlashInfer has head dimensions of 64, 128 and 256, not {config.head_dim}"
    return "" if is_installed() else MISSING


@dataclass
class _Wrappers:
    """FlashInfer's wrappers for the layers of one window, as a plan has one for all. fixed: those of CUDA graphs, by
    their number of entries. current: what this step's layers run."""

    prefill: Any
    decode: Any
    fixed: dict[int, Any] = field(default_factory=dict)
    current: Any = None


class FlashInferAttention(Attention):
    """See `Attention`. Planned once per step and window; decodes have wrappers of their own, which CUDA graphs replay.

    What entries share is read once in the layers that see everything. Those with a window do without: a window's start
    differs from query to query, while a run that is read for a group is seen by all of its queries or by none.
    """

    name = "flashinfer"

    def __init__(self, config: ModelConfig, pool: KVPool, dtype: torch.dtype, *, invariant: bool = False) -> None:
        """dtype: of the queries. invariant: see `model.fixed_rows`; every query is then a request of its own, and one
        thread block reads all of its keys, so that its arithmetic does not depend on what else is in the step.

        Raises UnsupportedModel where `why_not` has an answer.
        """
        super().__init__(config, pool)
        reason = why_not(config, dtype)
        if reason:
            raise UnsupportedModel(f"the flashinfer backend cannot be used: {reason}")
        if pool.dtype not in KV_TYPES or (pool.dtype in QUERY_TYPES and pool.dtype != dtype):
            names = f"{str(dtype).removeprefix('torch.')} or float8_e4m3fn"
            raise UnsupportedModel(f"the flashinfer backend needs a KV pool of {names} here, not {pool.dtype}")
        try:
            self.kernels: Any = importlib.import_module("flashinfer")
        except (ImportError, OSError) as error:
            raise UnsupportedModel(f"the flashinfer backend cannot be used: importing it gives {error!r}") from error
        self._dtype = dtype
        self._invariant = invariant
        self._device = pool.device
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._shared = self._prefill_wrapper()
        self._wrappers = {window: _Wrappers(self._prefill_wrapper(), self._decode_wrapper()) for window in self.windows}
        self._fixed_indices: Tensor | None = None
        self._rows: Tensor | None = None
        self._shared_queries = 0
        self._planned = torch.cuda.Event() if self._device.type == "cuda" else None
        self._merge_nothing()

    def _merge_nothing(self) -> None:
        """Has the merge compiled now, not in the first step that shares a prefix."""
        values = torch.zeros(1, self.config.heads, self.config.head_dim, dtype=self._dtype, device=self._device)
        sums = torch.zeros(1, self.config.heads, dtype=torch.float32, device=self._device)
        self.kernels.merge_state_in_place(values, sums, values.clone(), sums.clone())

    def plan(self, batch: AttentionBatch) -> None:
        self._await_last_plan()
        batch = one_query_each(batch) if self._invariant else batch
        self._rows, self._shared_queries = None, 0
        grouped = self.shares(batch)
        if grouped:
            self._plan_levels(self._wrappers[0], paged_plan(batch))
        whole = paged_plan(replace(batch, shared=())).own
        for window, wrappers in self._wrappers.items():
            if window or not grouped:
                self._plan_whole(wrappers, whole, window)
        self._note_planned()

    def shares(self, batch: AttentionBatch) -> bool:
        """Whether some layers read the batch's groups once for all who share them."""
        return 0 in self._wrappers and shares(batch)

    def _plan_whole(self, wrappers: _Wrappers, level: PagedLevel, window: int) -> None:
        if level.longest == 1:
            wrappers.current = wrappers.decode
            self._plan_decode(wrappers.decode, level, window)
        else:
            wrappers.current = wrappers.prefill
            self._plan_prefill(wrappers.prefill, level, window, causal=True)

    def _plan_levels(self, wrappers: _Wrappers, plan: PagedPlan) -> None:
        assert plan.shared is not None
        self._rows = None if plan.rows is None else to_device(plan.rows, self._device)
        self._shared_queries = int(plan.shared.qo_indptr[-1])
        self._plan_prefill(self._shared, plan.shared, 0, causal=False)
        wrappers.current = wrappers.prefill
        self._plan_prefill(wrappers.prefill, plan.own, 0, causal=True)

    def run(self, layer: int, q: Tensor) -> Tensor:
        cache = self._pages(layer)
        window = self.config.window(layer)
        current = self._wrappers[window].current
        if window or not self._shared_queries:
            return current.run(q, cache)
        q = q if self._rows is None else q.index_select(0, self._rows)
        out, lse = current.run(q, cache, return_lse=True)
        many = self._shared_queries
        shared_out, shared_lse = self._shared.run(q[:many], cache, return_lse=True)
        self.kernels.merge_state_in_place(out[:many], lse[:many], shared_out, shared_lse)
        return out if self._rows is None else torch.empty_like(out).index_copy_(0, self._rows, out)

    # --- for CUDA graphs ----------------------------------------------------------------------------------------------

    def reserve(self, sizes: list[int], most_slots: int) -> None:
        """Makes the decode wrappers for steps of so many entries, whose entries attend to `most_slots` in all at most.

        A graph replays the addresses it was captured with, so their plan arrays live in buffers that stay.
        """
        self._fixed_indices = torch.zeros(most_slots, dtype=torch.int32, device=self._device)
        for wrappers in self._wrappers.values():
            wrappers.fixed = {size: self._fixed_wrapper(size) for size in sizes}

    def plan_fixed(self, batch: AttentionBatch) -> None:
        """As `plan`, for decodes of a reserved number of entries: `run` is then the same launches each time."""
        self._await_last_plan()
        level = paged_plan(batch).own
        self._rows, self._shared_queries = None, 0
        for window, wrappers in self._wrappers.items():
            wrappers.current = wrappers.fixed[len(level.last_page_len)]
            self._plan_decode(wrappers.current, level, window)
        self._note_planned()

    # --- FlashInfer's own calls ---------------------------------------------------------------------------------------

    def _prefill_wrapper(self) -> Any:
        return self.kernels.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT, backend=KERNELS)

    def _decode_wrapper(self) -> Any:
        return self.kernels.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, LAYOUT, use_tensor_cores=True, backend=KERNELS
        )

    def _fixed_wrapper(self, size: int) -> Any:
        """They may share their slots' buffer: whatever its window, a plan writes the same into it."""
        return self.kernels.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=torch.zeros(size + 1, dtype=torch.int32, device=self._device),
            paged_kv_indices_buffer=self._fixed_indices,
            paged_kv_last_page_len_buffer=torch.ones(size, dtype=torch.int32, device=self._device),
            backend=KERNELS,
        )

    def _scores(self, window: int) -> dict[str, Any]:
        """What becomes of scores, for every plan. FlashInfer counts a window's keys without the query's own."""
        return {
            "window_left": window - 1,  # -1: all
            "logits_soft_cap": self.config.score_cap,  # 0: none
            "sm_scale": self.config.attention_scale,
        }

    def _plan_prefill(self, wrapper: Any, level: PagedLevel, window: int, *, causal: bool) -> None:
        wrapper.plan(
            torch.from_numpy(level.qo_indptr),
            torch.from_numpy(level.kv_indptr),
            to_device(level.kv_indices.astype(np.int32), self._device),
            torch.from_numpy(level.last_page_len),
            self.config.heads,
            self.config.kv_heads,
            self.config.head_dim,
            1,
            causal=causal,
            q_data_type=self._dtype,
            kv_data_type=self.pool.dtype,
            **self._scores(window),
        )

    def _plan_decode(self, wrapper: Any, level: PagedLevel, window: int) -> None:
        wrapper.plan(
            torch.from_numpy(level.kv_indptr),
            to_device(level.kv_indices.astype(np.int32), self._device),
            torch.from_numpy(level.last_page_len),
            self.config.heads,
            self.config.kv_heads,
            self.config.head_dim,
            1,
            q_data_type=self._dtype,
            kv_data_type=self.pool.dtype,
            disable_split_kv=self._invariant,
            **self._scores(window),
        )

    def _pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer, [pages, 1, kv_heads, head_dim]."""
        keys, values = self.pool.layer(layer)
        return keys.unsqueeze(1), values.unsqueeze(1)

    # FlashInfer stages its schedule in one page-locked buffer for each wrapper: the next plan may only write to it once
    # the device has copied the last one, which it does before that step's first layer.

    def _note_planned(self) -> None:
        if self._planned is not None:
            self._planned.record(torch.cuda.current_stream(self._device))

    def _await_last_plan(self) -> None:
        if self._planned is not None:
            self._planned.synchronize()
