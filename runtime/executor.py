"""Runs steps: keeps each row's slot table, prompt and sampling state, and turns a step's plan into tokens.

It decides nothing about which work to do or which slot is whose; it does exactly what the step says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .attention.base import Attention, AttentionBatch
from .attention.registry import backend_named
from .errors import ModelError, UnsupportedModel
from .kv_pool import KVPool, slots_that_fit
from .model.decoder import Decoder
from .model.loading import load_model
from .sampler import NOT_FINITE, ChosenLogprob, SamplingState, TopTokens, sample, token_logprobs
from .step import RowOpening, ScoredRun, Step, StepOutput, unpack

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCORE_PIECE = 128  # positions whose logits over the whole vocabulary exist at one time


@dataclass
class _Row:
    """What a row needs beside its slot table. last_token: what it sampled last, fed where a plan says -1."""

    state: SamplingState
    prompt_ids: np.ndarray
    score_start: int | None
    score_top: int
    last_token: int = 0


@dataclass(frozen=True)
class _Entries:
    """A step's entries: int32 arrays [B] (rows, starts, lengths), [tokens] (slots), and the queries' bounds [B + 1]."""

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray
    bounds: np.ndarray


class Executor:
    """A model with its KV pool and the rows' tables. Not for use from several threads."""

    def __init__(
        self, model: Decoder, pool: KVPool, attention: Attention, *, max_running: int, max_context: int
    ) -> None:
        """max_running: rows; max_context: tokens that a row's sequence may have at most."""
        self.model = model
        self.pool = pool
        self.attention = attention
        self.max_context = max_context
        self._slot_table = np.zeros((max_running, max_context), np.int32)
        self._rows: dict[int, _Row] = {}

    @torch.inference_mode()
    def step(self, step: Step) -> StepOutput:
        """Executes one step. A request's trouble (logits that are not finite) is answered; a wrong plan raises."""
        self._update_rows(step)
        entries = self._entries(step)
        if not len(entries.rows):
            return StepOutput(np.empty(0, np.int32), [], [])
        hidden = self._forward(entries, self._token_ids(step, entries))
        token_ids = np.full(len(entries.rows), -1, np.int32)
        logprobs = self._sample(np.frombuffer(step.sample, np.uint8), entries, hidden, token_ids)
        scored = self._score(entries, hidden, token_ids)
        return StepOutput(token_ids, logprobs, scored)

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _update_rows(self, step: Step) -> None:
        if step.poison:
            self.pool.poison(torch.tensor(unpack(step.poison), dtype=torch.int64))
        for row in step.closed:
            del self._rows[row]
        for opening in step.opened:
            self._rows[opening.row] = self._opened(opening)
        for write in step.slot_writes:
            slots = unpack(write.slots)
            self._slot_table[write.row, write.start : write.start + len(slots)] = slots

    def _opened(self, opening: RowOpening) -> _Row:
        prompt_ids = unpack(opening.prompt_ids)
        state = SamplingState(
            opening.sampling,
            opening.stop_ids,
            prompt_ids,
            unpack(opening.output_ids),
            self.model.config.vocab_size,
        )
        return _Row(state, prompt_ids, opening.score_start, opening.score_top)

    def _entries(self, step: Step) -> _Entries:
        """The step's arrays; its new slots enter the rows' tables."""
        rows, starts, lengths = unpack(step.rows), unpack(step.starts), unpack(step.lengths)
        slots = unpack(step.slots)
        bounds = _bounds(lengths)
        for row, start, length, first in zip(rows.tolist(), starts.tolist(), lengths.tolist(), bounds.tolist()):
            self._slot_table[row, start : start + length] = slots[first : first + length]
        return _Entries(rows, starts, lengths, slots, bounds)

    def _token_ids(self, step: Step, entries: _Entries) -> np.ndarray:
        """The step's token ids, int64 [tokens], with each row's last sample in place of -1."""
        token_ids = unpack(step.token_ids).astype(np.int64)
        if (token_ids < 0).any():
            last = np.array([self._rows[row].last_token for row in entries.rows.tolist()])
            token_ids = np.where(token_ids < 0, np.repeat(last, entries.lengths), token_ids)
        return token_ids

    # --- the forward pass -------------------------------------------------------------------------------------------

    def _forward(self, entries: _Entries, token_ids: np.ndarray) -> Tensor:
        """The hidden states of all of the step's tokens, [tokens, width]."""
        ends = entries.starts + entries.lengths
        offsets = entries.starts - entries.bounds[:-1]
        positions = np.arange(len(token_ids)) + np.repeat(offsets, entries.lengths)
        kv_indices = [self._slot_table[row, :end] for row, end in zip(entries.rows.tolist(), ends.tolist())]
        self.attention.plan(AttentionBatch(entries.bounds, _bounds(ends), np.concatenate(kv_indices)))
        slots = torch.from_numpy(entries.slots.astype(np.int64))
        return self.model.hidden(
            torch.from_numpy(token_ids), torch.from_numpy(positions), _PooledAttention(self.pool, self.attention, slots)
        )

    # --- what is asked of the hidden states ---------------------------------------------------------------------------

    def _sample(
        self, wanted: np.ndarray, entries: _Entries, hidden: Tensor, token_ids: np.ndarray
    ) -> list[ChosenLogprob]:
        """Samples for the entries marked in `wanted`, into `token_ids`, from the last hidden state of each."""
        sampling = np.flatnonzero(wanted)
        if not len(sampling):
            return []
        rows = [self._rows[row] for row in entries.rows[sampling].tolist()]
        last = torch.from_numpy(entries.bounds[1:][sampling].astype(np.int64) - 1)
        logits = self.model.logits(hidden.index_select(0, last))
        choice = sample(logits, [row.state for row in rows], (entries.starts + entries.lengths)[sampling])
        token_ids[sampling] = choice.token_ids
        for row, token_id in zip(rows, choice.token_ids.tolist(), strict=True):
            row.last_token = max(token_id, 0)  # after a failure any token will do: what follows it is dropped
        return [ChosenLogprob(int(sampling[one.row]), one.logprob, one.top) for one in choice.logprobs]

    def _score(self, entries: _Entries, hidden: Tensor, token_ids: np.ndarray) -> list[ScoredRun]:
        """Log-probabilities of the wanted prompt tokens. An entry whose logits are not finite is marked instead."""
        scored: list[ScoredRun] = []
        for entry, row_number in enumerate(entries.rows.tolist()):
            row = self._rows[row_number]
            if row.score_start is None:
                continue
            start = int(entries.starts[entry])
            first = max(row.score_start, start + 1)
            end = min(start + int(entries.lengths[entry]) + 1, len(row.prompt_ids))
            if first >= end:
                continue
            base = int(entries.bounds[entry]) + first - 1 - start  # the hidden state that predicts position `first`
            run = self._scored_run(hidden[base : base + end - first], row.prompt_ids[first:end], row.score_top)
            if run is None:
                token_ids[entry] = NOT_FINITE
            else:
                scored.append(ScoredRun(entry, first, *run))
        return scored

    def _scored_run(self, hidden: Tensor, targets: np.ndarray, top: int) -> tuple[list[float], list[TopTokens]] | None:
        logprobs: list[float] = []
        tops: list[TopTokens] = []
        for start in range(0, len(targets), SCORE_PIECE):
            piece = targets[start : start + SCORE_PIECE]
            values, likeliest = token_logprobs(
                self.model.logits(hidden[start : start + SCORE_PIECE]), piece, [top] * len(piece)
            )
            logprobs += values
            tops += likeliest
        return (logprobs, tops) if np.isfinite(logprobs).all() else None


@dataclass(frozen=True)
class _PooledAttention:
    """Attention of one step: every layer's K and V go to the pool before any query reads from it."""

    pool: KVPool
    attention: Attention
    slots: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.store(layer, self.slots, k, v)
        return self.attention.run(layer, q)


def _bounds(counts: np.ndarray) -> np.ndarray:
    """Where each of the consecutive runs begins, and the end: int32 [len(counts) + 1]."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def load_executor(
    path: Path | str,
    *,
    max_running: int,
    max_context: int = 0,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    attention_backend: str = "auto",
    threads: int = 0,
    kv_tokens: int = 0,
    kv_memory_fraction: float = 0.3,
) -> Executor:
    """Loads the model at `path` (a `.gguf` file or a Hugging Face directory) and allocates its KV pool.

    max_context: 0, or one above the model's own or the pool's size, means the lower of those two.
    dtype: float32, bfloat16, float16, or auto (float32). kv_dtype: the same, auto following dtype.
    threads: 0 leaves torch's own choice. kv_tokens: slots; 0 takes `kv_memory_fraction` of the available memory.
    Raises ModelError or UnsupportedModel with a sentence for the user.
    """
    weight_dtype = _dtype_named(dtype, "dtype", torch.float32)
    pool_dtype = _dtype_named(kv_dtype, "kv_dtype", weight_dtype)
    backend = backend_named(attention_backend)
    if threads:
        torch.set_num_threads(threads)
    model = load_model(path, weight_dtype)
    slots = slots_that_fit(model.config, pool_dtype, kv_tokens=kv_tokens, memory_fraction=kv_memory_fraction)
    try:
        pool = KVPool(model.config, slots, pool_dtype)
    except MemoryError:
        raise ModelError(f"the system refuses the memory for a KV pool of {slots} tokens") from None
    context = min(max_context or model.config.max_context, model.config.max_context, slots)
    return Executor(model, pool, backend(model.config, pool), max_running=max_running, max_context=context)


def _dtype_named(name: str, option: str, automatic: torch.dtype) -> torch.dtype:
    if name == "auto":
        return automatic
    if name not in DTYPES:
        raise UnsupportedModel(f"{option} {name!r} is not supported; there are auto, {', '.join(DTYPES)}")
    return DTYPES[name]
