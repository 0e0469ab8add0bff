"""A worker without a model: it executes StepPlans on a pool of sequence fingerprints and checks every slot it reads.

A slot holds the fingerprint of the whole sequence up to its position, so reading a slot that was freed, reused or never
written is noticed at once. The next token is a function of the sequence, hence an answer has one right value, whatever
was batched, cached, evicted or retracted on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sapwood.managers.messages import (
    OpenRow,
    SampledLogprob,
    Scored,
    StepPlan,
    StepResult,
    TopLogprobs,
    unpack_ids,
)

VOCABULARY = 50
POISON = -1


def extended(print_: int, token: int) -> int:
    """The fingerprint of a sequence one token longer than the one that has this fingerprint."""
    return hash((print_, token))


def fingerprint(tokens: list[int]) -> int:
    """A number that stands for the KV of the last of these tokens, after all of them; 0 for none."""
    print_ = 0
    for token in tokens:
        print_ = extended(print_, token)
    return print_


def next_token(tokens: list[int]) -> int:
    """The fake model: the only right continuation of a sequence."""
    return fingerprint(tokens) % VOCABULARY


def next_logprob(tokens: list[int]) -> float:
    """The fake model's log-probability of the last token after the ones before it."""
    return -(fingerprint(tokens) % 1000) / 1000


def completion(prompt: list[int], max_tokens: int, stop_ids: list[int]) -> list[int]:
    """What a request must answer, computed alone."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


@dataclass
class Row:
    opened: OpenRow
    prompt: list[int]
    tokens: dict[int, int] = field(default_factory=dict)  # position -> id, as computed so far
    slots: dict[int, int] = field(default_factory=dict)
    prints: list[int] = field(default_factory=list)  # of the sequence up to each position
    sampled: int | None = None

    def print_at(self, position: int) -> int:
        """The right fingerprint at a position."""
        while len(self.prints) <= position:
            place = len(self.prints)
            self.prints.append(extended(self.prints[-1] if place else 0, self.tokens[place]))
        return self.prints[position]


class FakeWorker:
    def __init__(self, total_slots: int) -> None:
        self.pool: list[int | None] = [None] * total_slots
        self.rows: dict[int, Row] = {}
        self.computed = 0
        self.largest_step = 0
        self.shared_reads = 0  # slots that groups saved reading

    def execute(self, plan: StepPlan) -> StepResult:
        self._update(plan)
        rows, starts, lengths = (unpack_ids(part).tolist() for part in (plan.rows, plan.starts, plan.lengths))
        assert len(set(rows)) == len(rows), "a row twice in one step"
        token_ids, slots = unpack_ids(plan.token_ids).tolist(), unpack_ids(plan.slots).tolist()
        assert len(token_ids) == len(slots) == sum(lengths)
        assert len(set(slots)) == len(slots), "two tokens of one step are written to the same slot"
        assert all(length > 0 for length in lengths)
        self.computed += sum(lengths)
        self.largest_step = max(self.largest_step, sum(lengths))
        self._check_groups(plan, rows, starts)
        place = 0
        for row_index, start, length in zip(rows, starts, lengths):
            self._store(self.rows[row_index], start, token_ids[place : place + length], slots[place : place + length])
            place += length
        return self._read(plan, rows, starts, lengths)

    def _update(self, plan: StepPlan) -> None:
        for slot in unpack_ids(plan.poison).tolist():
            self.pool[slot] = POISON
        for row_index in plan.closed:
            del self.rows[row_index]
        for opened in plan.opened:
            assert opened.row not in self.rows, "a row was opened twice"
            prompt = unpack_ids(opened.prompt_ids).tolist()
            row = self.rows[opened.row] = Row(opened, prompt)
            row.tokens.update(enumerate(prompt + unpack_ids(opened.output_ids).tolist()))
        for write in plan.slot_writes:
            for offset, slot in enumerate(unpack_ids(write.slots).tolist()):
                self.rows[write.row].slots[write.start + offset] = slot

    def _store(self, row: Row, start: int, token_ids: list[int], slots: list[int]) -> None:
        for offset, (token, slot) in enumerate(zip(token_ids, slots)):
            position = start + offset
            if token == -1:
                assert row.sampled is not None, "a token is to be fed back that was never sampled"
                token = row.sampled
            assert row.tokens.get(position, token) == token, "the plan's token is not the row's"
            row.tokens[position] = token
            row.slots[position] = slot
            self.pool[slot] = row.print_at(position)

    def _check_groups(self, plan: StepPlan, rows: list[int], starts: list[int]) -> None:
        members = [entry for run in plan.shared for entry in run.entries]
        assert len(set(members)) == len(members), "an entry is in two groups"
        for run in plan.shared:
            self.shared_reads += (len(run.entries) - 1) * run.length
            slots = [
                [self.rows[rows[entry]].slots[position] for position in range(run.length)] for entry in run.entries
            ]
            assert all(each == slots[0] for each in slots), "a group's members do not share these slots"
            assert all(starts[entry] >= run.length for entry in run.entries), "a query of the group sees less"

    def _read(self, plan: StepPlan, rows: list[int], starts: list[int], lengths: list[int]) -> StepResult:
        sampled, logprobs, scored = [], [], []
        for entry, (row_index, start, length) in enumerate(zip(rows, starts, lengths)):
            row, end = self.rows[row_index], start + length
            for position in range(end):
                right = row.print_at(position)
                assert self.pool[row.slots[position]] == right, f"position {position} of row {row_index} is lost"
            row.sampled = row.print_at(end - 1) % VOCABULARY if plan.sample[entry] else None
            sampled.append(-1 if row.sampled is None else row.sampled)
            if row.sampled is not None and row.opened.sampling.logprobs is not None:
                logprob = -(extended(row.print_at(end - 1), row.sampled) % 1000) / 1000
                logprobs.append(SampledLogprob(entry, logprob, TopLogprobs([], [])))
            if row.opened.score_start is not None:
                first, last = max(row.opened.score_start, start + 1), min(end + 1, len(row.prompt))
                if first < last:
                    values = [next_logprob(row.prompt[: position + 1]) for position in range(first, last)]
                    scored.append(Scored(entry, first, values, [TopLogprobs([], [])] * len(values)))
        return StepResult(plan.step, np.array(sampled, dtype="<i4").tobytes(), logprobs, scored, 0.001)
