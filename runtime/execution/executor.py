"""Runs steps: keeps each row's slot table, prompt and sampling state, and turns a step's plan into tokens.

It decides nothing about which work to do or which slot is whose; it does exactly what the step says.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from ..kernels.sampling import NativeSampler
from ..records import unpack_ids
from ..sampling.rounds import RowMatcher, SamplingRounds, bitmasks, sample_rounds
from ..sampling.sampler import NOT_FINITE
from ..sampling.sampling_state import SamplingState, looks_back
from ..sampling.torch_choice import choose
from ..step import EntryResult, Failure, OpenRow, StepPlan, StepResult, TierCopy
from ..wanted import PromptAnswer, Wanted
from .last_layer import Span, answers, span_of
from .launched import Launched, known
from .ranks import ALONE, Ranks
from .runner import ModelStep, Runner, SharedPrefix
from .transfer import Fetched

NOTHING = EntryResult()


@dataclass
class _Row:
    """What a row needs beside its slot table. last_token: what it gained last, fed where a plan says -1.

    completion: what a row with a matcher has generated.
    """

    state: SamplingState
    wanted: Wanted | None
    prompt_ids: np.ndarray
    matcher: RowMatcher | None
    completion: list[int]
    last_token: int = 0


@dataclass(frozen=True)
class _Entries:
    """A step's entries: int32 arrays [B] (rows, starts, lengths, speculated), [tokens] (slots), and the queries' bounds
    [B + 1]. members: the rows themselves, whoever has their numbers later."""

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    speculated: np.ndarray
    slots: np.ndarray
    bounds: np.ndarray
    members: list[_Row]


class Executor:
    """A model with its KV pool and the rows' tables. Not for use from several threads."""

    def __init__(
        self,
        runner: Runner,
        *,
        max_running: int,
        max_context: int,
        vocab_size: int | None = None,
        sampler: NativeSampler | None = None,
        note: str = "",
        ahead: bool = False,
        ranks: Ranks = ALONE,
        tier_places: int = 0,
    ) -> None:
        """max_running: rows; max_context: tokens that a row's sequence may have at most.

        vocab_size: how many ids have a token, where the model has embeddings for more: those are padding, and are
        neither sampled nor part of any probability.
        sampler: chooses tokens; torch does where there is none. note: why a better backend is not used, for the log.
        ahead: launch steps without waiting for the device, where `starts_ahead` allows it.
        ranks: who computes the model; each executes the same steps, and the first alone has matchers and answers.
        tier_places: of the tier in memory that plans may copy slots to and from; of each rank's part here.
        """
        self.runner = runner
        self.pool = runner.pool
        self._tier = runner.pool.sibling(tier_places) if tier_places else None
        self.note = note
        self.ahead = ahead
        self.ranks = ranks
        self._sampler = sampler
        self._last = self._before_last = known(StepResult(-1, []))
        self.max_context = max_context
        self.vocab_size = min(vocab_size or runner.config.vocab_size, runner.config.vocab_size)
        self._slot_table = np.zeros((max_running, max_context), np.int32)
        self._rows: dict[int, _Row] = {}
        self._masks = ThreadPoolExecutor(1, "masks")  # matchers work beside the forward pass

    def step(self, plan: StepPlan, matchers: Mapping[int, RowMatcher] | None = None) -> StepResult:
        """Executes one step. A request's trouble is answered (`step.Failure`); a wrong plan raises.

        matchers: of those rows that this step opens and that have one.
        """
        return self.launch(plan, matchers).result()

    def starts_ahead(self, plan: StepPlan, matchers: Mapping[int, RowMatcher]) -> bool:
        """Whether the step can be launched before the tokens of the one before it are known to the host.

        So it is where sampling does not look back: without matchers, guesses, penalties, held-back stop ids, and where
        no log-probabilities are wanted.
        """
        if not self.ahead or matchers or any(plan.speculated):
            return False
        opened = {opening.row: opening for opening in plan.opened}
        for row_number in unpack_ids(plan.rows).tolist():
            opening = opened.get(row_number)
            options = self._rows[row_number].state.options if opening is None else opening.sampling
            wants = (self._rows[row_number].wanted if opening is None else opening.wanted) is not None
            matched = opening is None and self._rows[row_number].matcher is not None
            if matched or wants or looks_back(options):
                return False
        return True

    @torch.inference_mode()
    def launch(self, plan: StepPlan, matchers: Mapping[int, RowMatcher] | None = None) -> Launched:
        """As `step`, whose result can be asked for later where `starts_ahead`. Steps end in order all the same."""
        ahead = self.starts_ahead(plan, matchers or {})
        (self._before_last if ahead else self._last).result()
        self._update_rows(plan, matchers or {})
        entries = self._entries(plan)
        if ahead and len(entries.rows):
            launched = self._launch(plan, entries, self._last)
        else:
            launched = known(self._run(plan, entries) if len(entries.rows) else StepResult(plan.step, []))
        self._before_last, self._last = self._last, launched
        return launched

    def _launch(self, plan: StepPlan, entries: _Entries, last: Launched) -> Launched:
        """Orders the whole step on the device, where what `last` samples is fed from."""
        token_ids = self._token_ids(plan, entries, last.fed_places)
        rounds, sampled = self._rounds(plan, entries, token_ids)
        hidden = self._forward(plan, entries, token_ids, sampled.astype(np.int32), last.chosen)
        if rounds:
            positions = np.array([each.position for each in rounds])
            logits = self._logits(hidden)
            if self.ranks.leads:
                chosen = choose(logits, [each.state for each in rounds], positions, None)
            else:
                chosen = torch.empty(len(rounds), dtype=torch.int64, device=logits.device)
            chosen = self.ranks.spread(chosen)
        else:
            chosen = hidden.new_empty(0, dtype=torch.int64)
        fetched = Fetched(chosen)

        def finish() -> StepResult:
            last.result()
            for each, token_id in zip(rounds, fetched.wait().tolist(), strict=True):
                if token_id >= 0:
                    each.state.append(token_id)
                each.take(token_id if token_id >= 0 else NOT_FINITE, None)
            return self._result(plan, entries, rounds, [], [])

        places = {int(entries.rows[each.entry]): place for place, each in enumerate(rounds)}
        return Launched(finish, fetched.is_there, chosen.clamp(min=0), places)

    def _run(self, plan: StepPlan, entries: _Entries) -> StepResult:
        token_ids = self._token_ids(plan, entries, {})
        rounds, sampled = self._rounds(plan, entries, token_ids)
        matched = any(each.matcher is not None for each in rounds)
        masks = self._masks.submit(bitmasks, rounds, self.vocab_size) if matched else None
        spans = self._spans(entries)
        wanted = np.unique(np.concatenate([sampled, *(span.rows for span in spans)]))
        hidden = self._forward(plan, entries, token_ids, wanted.astype(np.int32))
        if rounds:
            of_sampled = hidden if len(wanted) == len(sampled) else hidden[np.searchsorted(wanted, sampled)]
            self._choose(rounds, self._logits(of_sampled), masks)
        return self._result(plan, entries, rounds, spans, answers(spans, hidden, wanted, self._logits, self.ranks))

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _update_rows(self, plan: StepPlan, matchers: Mapping[int, RowMatcher]) -> None:
        for copy in plan.copies:
            self._copy(copy)
        if plan.poison:
            self.pool.poison(torch.tensor(unpack_ids(plan.poison), dtype=torch.int64))
        for row in plan.closed:
            del self._rows[row]
        for opening in plan.opened:
            self._rows[opening.row] = self._opened(opening, matchers.get(opening.row))
        for write in plan.slot_writes:
            slots = unpack_ids(write.slots)
            self._slot_table[write.row, write.start : write.start + len(slots)] = slots

    def _copy(self, copy: TierCopy) -> None:
        if self._tier is None:
            raise ValueError("a plan copies slots to or from a tier, but there is none")
        slots, places = (torch.tensor(unpack_ids(each), dtype=torch.int64) for each in (copy.slots, copy.places))
        if copy.out:
            self.pool.copy(slots, self._tier, places)
        else:
            self._tier.copy(places, self.pool, slots)

    def _opened(self, opening: OpenRow, matcher: RowMatcher | None) -> _Row:
        prompt_ids, output_ids = unpack_ids(opening.prompt_ids), unpack_ids(opening.output_ids)
        state = SamplingState(opening.sampling, opening.stop_ids, prompt_ids, output_ids, self.vocab_size)
        completion = output_ids.tolist() if matcher is not None else []
        return _Row(state, opening.wanted, prompt_ids, matcher, completion)

    def _entries(self, plan: StepPlan) -> _Entries:
        """The step's arrays; its new slots enter the rows' tables."""
        rows, starts, lengths = unpack_ids(plan.rows), unpack_ids(plan.starts), unpack_ids(plan.lengths)
        slots = unpack_ids(plan.slots)
        speculated = unpack_ids(plan.speculated) if plan.speculated else np.zeros_like(rows)
        bounds = _bounds(lengths)
        for row, start, length, first in zip(rows.tolist(), starts.tolist(), lengths.tolist(), bounds.tolist()):
            self._slot_table[row, start : start + length] = slots[first : first + length]
        return _Entries(rows, starts, lengths, speculated, slots, bounds, [self._rows[row] for row in rows.tolist()])

    def _token_ids(self, plan: StepPlan, entries: _Entries, fed_places: Mapping[int, int]) -> np.ndarray:
        """The step's token ids, int32 [tokens]. In place of -1 comes what the row sampled last, or where the step in
        flight does that, -1 - its place there."""
        token_ids = unpack_ids(plan.token_ids)
        if (token_ids < 0).any():
            rows = zip(entries.rows.tolist(), entries.members, strict=True)
            last = [-1 - fed_places[row] if row in fed_places else member.last_token for row, member in rows]
            last = np.array(last, np.int32)
            token_ids = np.where(token_ids < 0, np.repeat(last, entries.lengths), token_ids)
        return token_ids

    # --- the forward pass -------------------------------------------------------------------------------------------

    def _forward(
        self, plan: StepPlan, entries: _Entries, token_ids: np.ndarray, wanted: np.ndarray, fed: Tensor | None = None
    ) -> Tensor:
        """The hidden states of the tokens `wanted` (rows of the step, ascending): [wanted, width]."""
        ends = entries.starts + entries.lengths
        offsets = entries.starts - entries.bounds[:-1]
        positions = np.arange(len(token_ids), dtype=np.int32) + np.repeat(offsets, entries.lengths)
        kv_indices = [self._slot_table[row, :end] for row, end in zip(entries.rows.tolist(), ends.tolist())]
        model_step = ModelStep(
            token_ids=token_ids,
            positions=positions,
            slots=entries.slots,
            qo_indptr=entries.bounds,
            kv_indptr=_bounds(ends),
            kv_indices=np.concatenate(kv_indices),
            output_rows=wanted,
            shared=[SharedPrefix(run.entries, run.length) for run in plan.shared],
            fed=fed,
        )
        return self.runner.forward(model_step)

    def _logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab_size], and [0, vocab_size] in other ranks than the first."""
        return self.runner.logits(hidden)[:, : self.vocab_size].contiguous()

    # --- what is asked of the hidden states ---------------------------------------------------------------------------

    def _spans(self, entries: _Entries) -> list[Span]:
        """What is wanted of the prompts' positions in this step."""
        starts, lengths, bases = entries.starts.tolist(), entries.lengths.tolist(), entries.bounds.tolist()
        found = [
            span_of(row.wanted, row.prompt_ids, entry, starts[entry], lengths[entry], bases[entry])
            for entry, row in enumerate(entries.members)
            if row.wanted is not None
        ]
        return [span for span in found if span is not None]

    def _rounds(
        self, plan: StepPlan, entries: _Entries, token_ids: np.ndarray
    ) -> tuple[list[SamplingRounds], np.ndarray]:
        """Of the entries that sample, and which tokens of the step their logits come from."""
        rounds: list[SamplingRounds] = []
        sampled: list[np.ndarray] = [np.empty(0, np.int64)]
        first = 0
        for entry in np.flatnonzero(np.frombuffer(plan.sample, np.uint8)).tolist():
            row, speculated = entries.members[entry], int(entries.speculated[entry])
            end = int(entries.bounds[entry + 1])
            position = int(entries.starts[entry] + entries.lengths[entry]) - speculated
            guesses = token_ids[end - speculated : end].tolist()
            rounds.append(SamplingRounds(entry, row.state, first, position, guesses, row.matcher, row.completion))
            sampled.append(np.arange(end - 1 - speculated, end))
            first += 1 + speculated
        return rounds, np.concatenate(sampled)

    def _choose(self, rounds: list[SamplingRounds], logits: Tensor, masks: Future[np.ndarray | None] | None) -> None:
        """Every entry takes its tokens; in other ranks than the first, only the last of them."""
        if self.ranks.leads:
            sample_rounds(rounds, logits, masks.result() if masks is not None else None, self._sampler)
        last = self.ranks.told_by_first([each.gained[-1] if each.gained else 0 for each in rounds])
        if not self.ranks.leads:
            for each, token_id in zip(rounds, last, strict=True):
                each.gained.append(token_id)

    def _result(
        self,
        plan: StepPlan,
        entries: _Entries,
        rounds: list[SamplingRounds],
        spans: list[Span],
        found: list[PromptAnswer | None],
    ) -> StepResult:
        """The answer. An entry whose output was not finite, sampled or told, fails as a whole."""
        results = [NOTHING] * len(entries.rows)
        for each in rounds:
            row = entries.members[each.entry]
            row.last_token = each.gained[-1] if each.gained else 0  # after a failure any will do: it is dropped
            results[each.entry] = each.result
        for span, answer in zip(spans, found, strict=True):
            if answer is None:
                results[span.entry] = EntryResult(failure=Failure("not finite"))
            elif results[span.entry].failure is None:
                results[span.entry] = replace(results[span.entry], prompt=answer)
        return StepResult(plan.step, results)


def _bounds(counts: np.ndarray) -> np.ndarray:
    """Where each of the consecutive runs begins, and the end: int32 [len(counts) + 1]."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
