"""Runs steps: keeps each row's slot table, prompt and sampling state, and turns a step's plan into tokens.

It decides nothing about which work to do or which slot is whose; it does exactly what the step says.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .kernels.sampling import NativeSampler
from .launched import NOTHING, Launched, known
from .ranks import ALONE, Ranks
from .runner import ModelStep, Runner, SharedPrefix
from .sampling.rounds import Turn, bitmasks, play
from .sampling.sampler import NOT_FINITE
from .sampling.state import SamplingState, looks_back
from .sampling.torch_choice import choose
from .scoring import ScoredSpan, WantedScores, score
from .step import RowGuide, RowOpening, ScoredRun, Step, StepOutput, unpack
from .transfer import Fetched


@dataclass
class _Row:
    """What a row needs beside its slot table. last_token: what it gained last, fed where a plan says -1.

    completion: what a guided row has generated.
    """

    state: SamplingState
    wanted: WantedScores | None
    guide: RowGuide | None
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
        sampler: NativeSampler | None = None,
        note: str = "",
        ahead: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """max_running: rows; max_context: tokens that a row's sequence may have at most.

        sampler: chooses tokens; torch does where there is none. note: why a better backend is not used, for the log.
        ahead: launch steps without waiting for the device, where `starts_ahead` allows it.
        ranks: who computes the model; each executes the same steps, and the first alone has guides and answers.
        """
        self.runner = runner
        self.pool = runner.pool
        self.note = note
        self.ahead = ahead
        self.ranks = ranks
        self._sampler = sampler
        self._last, self._before_last = known(NOTHING), known(NOTHING)
        self.max_context = max_context
        self._slot_table = np.zeros((max_running, max_context), np.int32)
        self._rows: dict[int, _Row] = {}
        self._masks = ThreadPoolExecutor(1, "masks")  # guides work beside the forward pass

    def step(self, step: Step, guides: Mapping[int, RowGuide] | None = None) -> StepOutput:
        """Executes one step. A request's trouble (logits that are not finite) is answered; a wrong plan raises.

        guides: of those rows that this step opens and that have one.
        """
        return self.launch(step, guides).output()

    def starts_ahead(self, step: Step, guides: Mapping[int, RowGuide]) -> bool:
        """Whether the step can be launched before the tokens of the one before it are known to the host.

        So it is where sampling does not look back: without guides, guesses, penalties, held-back stop ids, and where
        no log-probabilities are wanted.
        """
        if not self.ahead or guides or any(step.speculated):
            return False
        opened = {opening.row: opening for opening in step.opened}
        for row_number in unpack(step.rows).tolist():
            opening = opened.get(row_number)
            options = self._rows[row_number].state.options if opening is None else opening.sampling
            scored = (self._rows[row_number].wanted if opening is None else opening.score_start) is not None
            guided = opening is None and self._rows[row_number].guide is not None
            if guided or scored or looks_back(options):
                return False
        return True

    @torch.inference_mode()
    def launch(self, step: Step, guides: Mapping[int, RowGuide] | None = None) -> Launched:
        """As `step`, whose output can be asked for later where `starts_ahead`. Steps end in order all the same."""
        ahead = self.starts_ahead(step, guides or {})
        (self._before_last if ahead else self._last).output()
        self._update_rows(step, guides or {})
        entries = self._entries(step)
        if ahead and len(entries.rows):
            launched = self._launch(step, entries, self._last)
        else:
            launched = known(self._run(step, entries) if len(entries.rows) else NOTHING)
        self._before_last, self._last = self._last, launched
        return launched

    def _launch(self, step: Step, entries: _Entries, last: Launched) -> Launched:
        """Orders the whole step on the device, where what `last` samples is fed from."""
        token_ids = self._token_ids(step, entries, last.fed_places)
        turns, sampled = self._turns(step, entries, token_ids)
        hidden = self._forward(step, entries, token_ids, sampled.astype(np.int32), last.chosen)
        if turns:
            positions = np.array([turn.position for turn in turns])
            logits = self.runner.logits(hidden)
            if self.ranks.leads:
                chosen = choose(logits, [turn.state for turn in turns], positions, None)
            else:
                chosen = torch.empty(len(turns), dtype=torch.int64, device=logits.device)
            chosen = self.ranks.spread(chosen)
        else:
            chosen = hidden.new_empty(0, dtype=torch.int64)
        fetched = Fetched(chosen)

        def finish() -> StepOutput:
            last.output()
            for turn, token_id in zip(turns, fetched.wait().tolist(), strict=True):
                if token_id >= 0:
                    turn.state.append(token_id)
                turn.take(token_id if token_id >= 0 else NOT_FINITE, None)
            return self._output(entries, turns, [], [])

        places = {int(entries.rows[turn.entry]): place for place, turn in enumerate(turns)}
        return Launched(finish, fetched.is_there, chosen.clamp(min=0), places)

    def _run(self, step: Step, entries: _Entries) -> StepOutput:
        token_ids = self._token_ids(step, entries, {})
        turns, sampled = self._turns(step, entries, token_ids)
        guided = any(turn.guide is not None for turn in turns)
        masks = self._masks.submit(bitmasks, turns, self.runner.config.vocab_size) if guided else None
        spans = self._spans(entries)
        wanted = np.unique(np.concatenate([sampled, *(span.base + np.arange(len(span.targets)) for span in spans)]))
        hidden = self._forward(step, entries, token_ids, wanted.astype(np.int32))
        if turns:
            of_sampled = hidden if len(wanted) == len(sampled) else hidden[np.searchsorted(wanted, sampled)]
            self._choose(turns, self.runner.logits(of_sampled), masks)
        return self._output(entries, turns, spans, score(spans, hidden, wanted, self.runner, self.ranks))

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _update_rows(self, step: Step, guides: Mapping[int, RowGuide]) -> None:
        if step.poison:
            self.pool.poison(torch.tensor(unpack(step.poison), dtype=torch.int64))
        for row in step.closed:
            del self._rows[row]
        for opening in step.opened:
            self._rows[opening.row] = self._opened(opening, guides.get(opening.row))
        for write in step.slot_writes:
            slots = unpack(write.slots)
            self._slot_table[write.row, write.start : write.start + len(slots)] = slots

    def _opened(self, opening: RowOpening, guide: RowGuide | None) -> _Row:
        prompt_ids, output_ids = unpack(opening.prompt_ids), unpack(opening.output_ids)
        vocab_size = self.runner.config.vocab_size
        state = SamplingState(opening.sampling, opening.stop_ids, prompt_ids, output_ids, vocab_size)
        completion = output_ids.tolist() if guide is not None else []
        start = opening.score_start
        wanted = None if start is None else WantedScores(prompt_ids, start, opening.score_top)
        return _Row(state, wanted, guide, completion)

    def _entries(self, step: Step) -> _Entries:
        """The step's arrays; its new slots enter the rows' tables."""
        rows, starts, lengths = unpack(step.rows), unpack(step.starts), unpack(step.lengths)
        slots = unpack(step.slots)
        speculated = unpack(step.speculated) if step.speculated else np.zeros_like(rows)
        bounds = _bounds(lengths)
        for row, start, length, first in zip(rows.tolist(), starts.tolist(), lengths.tolist(), bounds.tolist()):
            self._slot_table[row, start : start + length] = slots[first : first + length]
        return _Entries(rows, starts, lengths, speculated, slots, bounds, [self._rows[row] for row in rows.tolist()])

    def _token_ids(self, step: Step, entries: _Entries, fed_places: Mapping[int, int]) -> np.ndarray:
        """The step's token ids, int32 [tokens]. In place of -1 comes what the row sampled last, or where the step in
        flight does that, -1 - its place there."""
        token_ids = unpack(step.token_ids)
        if (token_ids < 0).any():
            rows = zip(entries.rows.tolist(), entries.members, strict=True)
            last = [-1 - fed_places[row] if row in fed_places else member.last_token for row, member in rows]
            last = np.array(last, np.int32)
            token_ids = np.where(token_ids < 0, np.repeat(last, entries.lengths), token_ids)
        return token_ids

    # --- the forward pass -------------------------------------------------------------------------------------------

    def _forward(
        self, step: Step, entries: _Entries, token_ids: np.ndarray, wanted: np.ndarray, fed: Tensor | None = None
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
            shared=[SharedPrefix(run.entries, run.length) for run in step.shared],
            fed=fed,
        )
        return self.runner.forward(model_step)

    # --- what is asked of the hidden states ---------------------------------------------------------------------------

    def _spans(self, entries: _Entries) -> list[ScoredSpan]:
        """What is to be scored in this step."""
        starts, lengths, bases = entries.starts.tolist(), entries.lengths.tolist(), entries.bounds.tolist()
        found = [
            row.wanted.span(entry, starts[entry], lengths[entry], bases[entry])
            for entry, row in enumerate(entries.members)
            if row.wanted is not None
        ]
        return [span for span in found if span is not None]

    def _turns(self, step: Step, entries: _Entries, token_ids: np.ndarray) -> tuple[list[Turn], np.ndarray]:
        """The turns of the entries that sample, and which tokens of the step their logits come from."""
        turns: list[Turn] = []
        sampled: list[np.ndarray] = [np.empty(0, np.int64)]
        first = 0
        for entry in np.flatnonzero(np.frombuffer(step.sample, np.uint8)).tolist():
            row, speculated = self._rows[int(entries.rows[entry])], int(entries.speculated[entry])
            end = int(entries.bounds[entry + 1])
            position = int(entries.starts[entry] + entries.lengths[entry]) - speculated
            guesses = token_ids[end - speculated : end].tolist()
            turns.append(Turn(entry, row.state, first, position, guesses, row.guide, row.completion))
            sampled.append(np.arange(end - 1 - speculated, end))
            first += 1 + speculated
        return turns, np.concatenate(sampled)

    def _choose(self, turns: list[Turn], logits: Tensor, masks: Future[np.ndarray | None] | None) -> None:
        """Every turn takes its tokens; in other ranks than the first, only the last of them."""
        if self.ranks.leads:
            play(turns, logits, masks.result() if masks is not None else None, self._sampler)
        last = self.ranks.told_by_first([turn.gained[-1] if turn.gained else 0 for turn in turns])
        if not self.ranks.leads:
            for turn, token_id in zip(turns, last, strict=True):
                turn.gained.append(token_id)

    def _output(
        self, entries: _Entries, turns: list[Turn], spans: list[ScoredSpan], runs: list[ScoredRun | None]
    ) -> StepOutput:
        """The answer. An entry whose logits were not finite, sampled or scored, fails as a whole."""
        counts = np.zeros(len(entries.rows), np.int32)
        token_ids: list[int] = []
        for turn in turns:
            row = entries.members[turn.entry]
            row.last_token = turn.gained[-1] if turn.gained else 0  # after a failure any will do: it is dropped
            counts[turn.entry] = len(turn.gained) if turn.finite else NOT_FINITE
        for span, run in zip(spans, runs, strict=True):
            if run is None:
                counts[span.entry] = NOT_FINITE
        for turn in turns:
            if counts[turn.entry] > 0:
                token_ids += turn.gained
        return StepOutput(
            counts=counts,
            token_ids=np.array(token_ids, np.int32),
            logprobs=[each for turn in turns if counts[turn.entry] > 0 for each in turn.logprobs],
            scored=[run for run in runs if run is not None],
            guided=[turn.run for turn in turns if turn.guide is not None and counts[turn.entry] >= 0],
        )


def _bounds(counts: np.ndarray) -> np.ndarray:
    """Where each of the consecutive runs begins, and the end: int32 [len(counts) + 1]."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
