"""FlashInfer's interface over plain torch: its plan arrays are interpreted as its documentation says, nothing more.

Every call is bound to the recorded signature of the real one, so a call that FlashInfer would refuse fails here. What
its documentation asks of the arguments (types, shapes, buffers of CUDA graphs) is checked.
"""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RECORD = json.loads(Path(__file__).with_name("flashinfer_signatures.json").read_text(encoding="utf-8"))


def bound(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name; raises TypeError where the real function would."""
    parameters: list[inspect.Parameter] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for written in RECORD["calls"][name].split(", "):
        parameter, _, default = written.partition("=")
        if parameter.startswith("*"):
            kind = inspect.Parameter.KEYWORD_ONLY
            if parameter != "*":
                parameters.append(inspect.Parameter(parameter[1:], inspect.Parameter.VAR_POSITIONAL))
            continue
        parameters.append(inspect.Parameter(parameter, kind, default=None if default else inspect.Parameter.empty))
    return inspect.Signature(parameters).bind(*args, **kwargs).arguments


class _Wrapper:
    """A paged wrapper: what was planned last, and in graph mode the caller's buffers that it lives in."""

    name: str
    buffers: tuple[str, ...]  # of the constructor: qo_indptr (prefill only), kv_indptr, kv_indices, last_page_len

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{self.name}.__init__", self, *args, **kwargs)
        workspace = given["float_workspace_buffer"]
        assert workspace.dtype == torch.uint8
        assert workspace.numel() >= 128 << 20
        assert given["kv_layout"] == "NHD"
        assert given["backend"] == "fa2"
        self.graph = bool(given.get("use_cuda_graph"))
        self.fixed = [given[each] for each in self.buffers] if self.graph else []
        self.planned: dict[str, Any] = {}

    def _keep(self, arrays: list[Tensor], given: dict[str, Any], causal: bool) -> None:
        for each in arrays:
            assert each.dtype == torch.int32
        if self.graph:
            *bounds, indices, last = self.fixed
            *new_bounds, new_indices, new_last = arrays[-len(self.fixed) :]
            for buffer, new in zip((*bounds, last), (*new_bounds, new_last), strict=True):
                assert buffer.shape == new.shape, "the batch size is fixed"
                buffer.copy_(new)
            indices[: len(new_indices)].copy_(new_indices)
        self.planned = {**given, "arrays": arrays, "causal": causal}

    def _attend(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        arrays = self.planned["arrays"]
        if self.graph:
            arrays = [*arrays[: -len(self.fixed)], *self.fixed]  # a graph reads the buffers, whatever the plan was
        head_dim = self.planned.get("head_dim") or self.planned.get("head_dim_qk")
        assert q.dtype == self.planned["q_data_type"]
        assert cache[0].dtype == self.planned["kv_data_type"]
        assert q.shape[1:] == (self.planned["num_qo_heads"], head_dim)
        assert cache[0].shape[1:] == (self.planned["page_size"], self.planned["num_kv_heads"], head_dim)
        assert q.shape[0] == int(arrays[0][-1])
        scores = {name: self.planned.get(name) for name in ("window_left", "logits_soft_cap", "sm_scale")}
        return interpret(q, cache, *arrays, causal=self.planned["causal"], **scores)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    name = "BatchPrefillWithPagedKVCacheWrapper"
    buffers = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")

    def plan(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{self.name}.plan", self, *args, **kwargs)
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        self._keep([given[each] for each in names], given, bool(given.get("causal")))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        given = bound(f"{self.name}.run", self, *args, **kwargs)
        out, lse = self._attend(given["q"], given["paged_kv_cache"])
        return (out, lse) if given.get("return_lse") else out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    name = "BatchDecodeWithPagedKVCacheWrapper"
    buffers = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")

    def plan(self, *args: Any, **kwargs: Any) -> None:
        given = bound(f"{self.name}.plan", self, *args, **kwargs)
        one_each = torch.arange(len(given["last_page_len"]) + 1, dtype=torch.int32)
        self._keep([one_each, *(given[each] for each in ("indptr", "indices", "last_page_len"))], given, causal=False)

    def run(self, *args: Any, **kwargs: Any) -> Tensor:
        given = bound(f"{self.name}.run", self, *args, **kwargs)
        return self._attend(given["q"], given["paged_kv_cache"])[0]


def interpret(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_len: Tensor,
    *,
    causal: bool,
    window_left: int | None = None,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention by FlashInfer's page table, in float64: the output in q's type, and the log-sum-exp, in base 2,
    float32 [queries, heads].

    Request i has queries qo_indptr[i] to qo_indptr[i + 1] and the pages kv_indices[kv_indptr[i] : kv_indptr[i + 1]],
    all full but the last, which holds last_page_len[i] tokens. cache: K and V, each [pages, page_size, kv_heads, dim].
    The queries are at the last positions. Causal: each sees what is not behind it. window_left: each sees so many
    positions before its own, -1 or None all of them. Scores are multiplied by sm_scale (None: 1 / sqrt(dim)); with a
    cap above 0 they are then cap * tanh(score / cap).
    """
    page_size, kv_heads = cache[0].shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2])
    for i, last in enumerate(last_page_len.tolist()):
        first, end = int(qo_indptr[i]), int(qo_indptr[i + 1])
        pages = kv_indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])].long()
        assert 1 <= last <= page_size
        length = (len(pages) - 1) * page_size + last
        keys, values = (each[pages].flatten(0, 1)[:length].double() for each in cache)
        wide = q[first:end].double().unflatten(1, (kv_heads, -1))  # query head h belongs to KV head h // group
        scores = torch.einsum("nkgd,mkd->nkgm", wide, keys)
        scores *= 1 / math.sqrt(q.shape[2]) if sm_scale is None else sm_scale
        if logits_soft_cap is not None and logits_soft_cap > 0:
            scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
        query_at, key_at = torch.arange(length - (end - first), length)[:, None], torch.arange(length)[None, :]
        hidden = key_at > query_at if causal else torch.zeros(1, 1, dtype=torch.bool)
        if window_left is not None and window_left >= 0:
            hidden = hidden | (key_at < query_at - window_left)
        scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
        out[first:end] = torch.einsum("nkgm,mkd->nkgd", scores.softmax(-1), values).flatten(1, 2).to(q.dtype)
        lse[first:end] = (scores.logsumexp(-1) / math.log(2)).flatten(1, 2).float()
    return out, lse


def merge_state_in_place(*args: Any, **kwargs: Any) -> None:
    """Two runs' attention into that over both, in place: weights are 2 ** lse."""
    given = bound("merge_state_in_place", *args, **kwargs)
    v, s, v_other, s_other = (given[each] for each in ("v", "s", "v_other", "s_other"))
    assert s.dtype == s_other.dtype == torch.float32
    total = torch.logaddexp2(s.double(), s_other.double())
    ours, theirs = torch.exp2(s - total)[..., None], torch.exp2(s_other - total)[..., None]
    v.copy_(v.double() * ours + v_other.double() * theirs)
    s.copy_(total)


# --- fused operations ------------------------------------------------------------------------------------------------


def rmsnorm(*args: Any, **kwargs: Any) -> Tensor:
    given = bound("rmsnorm", *args, **kwargs)
    x = given["input"]
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + given["eps"])
    return (wide * scale * given["weight"].float()).to(x.dtype)


def fused_add_rmsnorm(*args: Any, **kwargs: Any) -> None:
    """In place: residual += input; input = its norm."""
    given = bound("fused_add_rmsnorm", *args, **kwargs)
    given["residual"].add_(given["input"])
    given["input"].copy_(rmsnorm(given["residual"], given["weight"], given["eps"]))


def gemma_rmsnorm(*args: Any, **kwargs: Any) -> Tensor:
    """As rmsnorm, with 1 + weight."""
    given = bound("gemma_rmsnorm", *args, **kwargs)
    return rmsnorm(given["input"], 1 + given["weight"].float(), given["eps"])


def gemma_fused_add_rmsnorm(*args: Any, **kwargs: Any) -> None:
    """As fused_add_rmsnorm, with 1 + weight."""
    given = bound("gemma_fused_add_rmsnorm", *args, **kwargs)
    fused_add_rmsnorm(given["input"], given["residual"], 1 + given["weight"].float(), given["eps"])


def silu_and_mul(*args: Any, **kwargs: Any) -> Tensor:
    gate, up = bound("silu_and_mul", *args, **kwargs)["input"].chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


def gelu_tanh_and_mul(*args: Any, **kwargs: Any) -> Tensor:
    gate, up = bound("gelu_tanh_and_mul", *args, **kwargs)["input"].chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate.float(), approximate="tanh") * up.float()).to(gate.dtype)


def apply_rope_with_cos_sin_cache_inplace(*args: Any, **kwargs: Any) -> None:
    """Rotates pairs (i, i + head_size / 2) of query and key, each [tokens, heads * head_size], in place."""
    given = bound("apply_rope_with_cos_sin_cache_inplace", *args, **kwargs)
    assert given["is_neox"] is True
    cache = given["cos_sin_cache"]
    assert cache.dtype == torch.float32
    cos, sin = cache[given["positions"]].unsqueeze(1).chunk(2, dim=-1)
    for each in (given["query"], given["key"]):
        heads = each.view(len(each), -1, given["head_size"])
        low, high = (half.float() for half in heads.chunk(2, dim=-1))
        heads.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))
