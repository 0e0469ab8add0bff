"""A worker without a model: it executes StepPlans on a pool of sequence fingerprints and checks every slot it reads.

A slot holds the fingerprint of the whole sequence up to its position, so reading a slot that was freed, reused or never
written is noticed at once. The next token is a function of the sequence, hence an answer has one right value, whatever
was batched, cached, evicted or retracted on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.runtime.records import TopLogprobs, unpack_ids
from sapwood.runtime.step import EntryResult, Failure, GrammarEdit, OpenRow, SampledLogprob, StepPlan, StepResult
from sapwood.runtime.wanted import PromptLogprobs

VOCABULARY = 50
POISON = -1
NOT_FINITE = -2


def extended(print_: int, token: int) -> int:
    """The fingerprint of a sequence one token longer than the one that has this fingerprint."""
    return hash((print_, token))


def fingerprint(tokens: list[int]) -> int:
    """A number that stands for the KV of the last of these tokens, after all of them; 0 for none."""
    print_ = 0
    for token in tokens:
        print_ = extended(print_, token)
    return print_


def next_token(tokens: list[int], tries: int = 0, seed: int = 0) -> int:
    """The fake model: the only right continuation of a sequence, or the next best after so many `tries`.

    Seeds agree about most tokens, so that what one said is a good guess at what another will say.
    """
    print_ = fingerprint(tokens)
    return (print_ + tries + (seed if print_ % 5 == 0 else 0)) % VOCABULARY


def next_logprob(tokens: list[int]) -> float:
    """The fake model's log-probability of the last token after the ones before it."""
    return -(fingerprint(tokens) % 1000) / 1000


class FakeMatcher:
    """A made-up grammar on fingerprints: some tokens force others to follow, some open a value that is checked when it
    closes, and then may be taken back as far as it was opened; the search goes on with the next best token there."""

    def __init__(self, prompt: list[int], completion: list[int]) -> None:
        self.tokens = prompt + completion
        self.prompt_length = len(prompt)
        self.opened: int | None = None  # length of the sequence where the open value begins
        self.tries: dict[int, int] = {}  # by length of the sequence

    def tries_here(self) -> int:
        return self.tries.get(len(self.tokens), 0)

    def advance(self, token: int) -> tuple[int, list[int], int, bool]:
        """rewind, the tokens that come, how many are held, and whether the completion is complete."""
        before = len(self.tokens)
        self.tokens.append(token)
        while fingerprint([*self.tokens, 7]) % 5 == 0 and len(self.tokens) < before + 4:
            self.tokens.append(fingerprint([*self.tokens, 8]) % VOCABULARY)
        print_ = fingerprint([*self.tokens, 9])
        if self.opened is None and print_ % 7 == 0:
            self.opened = before
        elif self.opened is not None and print_ % 3 == 0:
            if print_ % 2 and self.tries.get(self.opened, 0) < 3:
                rewind = before - self.opened
                del self.tokens[self.opened :]
                self.tries[self.opened] = self.tries.get(self.opened, 0) + 1
                start, self.opened = self.opened, None
                if print_ % 4 == 1:  # only one way is left
                    self.tokens.append((print_ + 1) % VOCABULARY)
                return rewind, self.tokens[start:], 0, False
            self.opened = None
        held = len(self.tokens) - self.opened if self.opened is not None else 0
        return 0, self.tokens[before:], held, self.opened is None and print_ % 31 == 1


def completion(
    prompt: list[int], max_tokens: int, stop_ids: list[int], *, constrained: bool = False, seed: int = 0
) -> list[int]:
    """What a request must answer, computed alone."""
    tokens = list(prompt)
    matcher = FakeMatcher(prompt, [])
    while len(tokens) < len(prompt) + max_tokens:
        if not constrained:
            tokens.append(next_token(tokens, seed=seed))
            if tokens[-1] in stop_ids:
                break
            continue
        rewind, new, _, complete = matcher.advance(next_token(tokens, matcher.tries_here(), seed))
        del tokens[len(tokens) - rewind :]
        stops = [i for i, token in enumerate(new) if token in stop_ids]
        tokens += new[: stops[0] + 1] if stops else new
        if complete or stops:
            break
    return tokens[len(prompt) : len(prompt) + max_tokens]


@dataclass
class Row:
    opened: OpenRow
    prompt: list[int]
    sequence: list[int]  # prompt and completion, as the worker itself has sampled it
    matcher: FakeMatcher | None
    slots: dict[int, int] = field(default_factory=dict)
    prints: list[int] = field(default_factory=list)  # of the sequence up to each position

    def print_at(self, position: int) -> int:
        """The right fingerprint at a position."""
        while len(self.prints) <= position:
            place = len(self.prints)
            self.prints.append(extended(self.prints[-1] if place else 0, self.sequence[place]))
        return self.prints[position]

    def rewind(self, count: int) -> None:
        del self.sequence[len(self.sequence) - count :]
        del self.prints[len(self.sequence) :]

    def logprob(self, position: int) -> float:
        return -(self.print_at(position) % 1000) / 1000


class FakeWorker:
    def __init__(self, total_slots: int) -> None:
        self.pool: list[int | None] = [None] * total_slots
        self.places: dict[int, int | None] = {}  # of the tier
        self.copied_in = 0
        self.rows: dict[int, Row] = {}
        self.grammars: set[str] = set()  # those it holds, by key
        self.computed = 0
        self.largest_step = 0
        self.shared_reads = 0  # slots that groups saved reading
        self.spoils: Callable[[int, Row, int], bool] = lambda step, row, position: False  # whether that gives NaN

    def execute(self, plan: StepPlan) -> StepResult:
        self._update(plan)
        rows, starts, lengths = (unpack_ids(part).tolist() for part in (plan.rows, plan.starts, plan.lengths))
        speculated = unpack_ids(plan.speculated).tolist() if plan.speculated else [0] * len(rows)
        assert len(set(rows)) == len(rows) == len(speculated), "a row twice in one step"
        token_ids, slots = unpack_ids(plan.token_ids).tolist(), unpack_ids(plan.slots).tolist()
        assert len(token_ids) == len(slots) == sum(lengths)
        assert len(set(slots)) == len(slots), "two tokens of one step are written to the same slot"
        assert all(length > guessed >= 0 for length, guessed in zip(lengths, speculated))
        self.computed += sum(lengths)
        self.largest_step = max(self.largest_step, sum(lengths))
        self._check_groups(plan, rows, starts)
        place, guesses = 0, []
        for row_index, start, length, guessed in zip(rows, starts, lengths, speculated):
            end = place + length
            guesses.append(token_ids[end - guessed : end])
            self._store(self.rows[row_index], start, token_ids[place:end], slots[place:end], guessed)
            place = end
        self._spoil(plan.step, rows, starts, lengths)
        return self._read(plan, rows, [start + length for start, length in zip(starts, lengths)], starts, guesses)

    def _update(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            for slot, place in zip(unpack_ids(copy.slots).tolist(), unpack_ids(copy.places).tolist(), strict=True):
                if copy.out:
                    assert self.pool[slot] not in (None, POISON, NOT_FINITE), "nothing worth keeping is copied out"
                    self.places[place] = self.pool[slot]
                else:
                    self.pool[slot] = self.places[place]
                    self.copied_in += 1
        for slot in unpack_ids(plan.poison).tolist():
            self.pool[slot] = POISON
        for row_index in plan.closed:
            del self.rows[row_index]
        for opened in plan.opened:
            assert opened.row not in self.rows, "a row was opened twice"
            prompt, output = unpack_ids(opened.prompt_ids).tolist(), unpack_ids(opened.output_ids).tolist()
            assert not opened.grammar or opened.grammar in self.grammars, "a grammar that is not held"
            matcher = FakeMatcher(prompt, output) if opened.grammar else None
            self.rows[opened.row] = Row(opened, prompt, prompt + output, matcher)
        for write in plan.slot_writes:
            for offset, slot in enumerate(unpack_ids(write.slots).tolist()):
                self.rows[write.row].slots[write.start + offset] = slot

    def _store(self, row: Row, start: int, token_ids: list[int], slots: list[int], guessed: int) -> None:
        known = start + len(token_ids) - guessed
        assert not guessed or known == len(row.sequence), "a guess that does not follow the sequence"
        print_ = 0
        for offset, (token, slot) in enumerate(zip(token_ids, slots)):
            position = start + offset
            row.slots[position] = slot
            if position < known:
                right = row.sequence[position]
                fed_back = token == -1 and position == len(row.sequence) - 1 and position >= len(row.prompt)
                assert token == right or fed_back, "the plan's token is not the row's"
                print_ = row.print_at(position)
            else:
                print_ = extended(print_, token)
            self.pool[slot] = print_

    def _spoil(self, step: int, rows: list[int], starts: list[int], lengths: list[int]) -> None:
        """What is computed from something that is not finite is not finite either."""
        spread = True
        while spread:
            spread = False
            for row, start, length in zip((self.rows[index] for index in rows), starts, lengths):
                bad = any(self.pool[row.slots[position]] == NOT_FINITE for position in range(start))
                for position in range(start, start + length):
                    slot = row.slots[position]
                    bad = bad or self.pool[slot] == NOT_FINITE or self.spoils(step, row, position)
                    if bad and self.pool[slot] != NOT_FINITE:
                        self.pool[slot] = NOT_FINITE
                        spread = True

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

    def _read(
        self, plan: StepPlan, rows: list[int], ends: list[int], starts: list[int], guesses: list[list[int]]
    ) -> StepResult:
        for row_index, end, guess in zip(rows, ends, guesses):
            row = self.rows[row_index]
            for position in range(end - len(guess)):
                right = row.print_at(position)
                assert self.pool[row.slots[position]] in (right, NOT_FINITE), (
                    f"position {position} of row {row_index} is lost"
                )
        results = []
        for entry, (row_index, start, end) in enumerate(zip(rows, starts, ends)):
            row, scored = self.rows[row_index], None
            if any(self.pool[row.slots[position]] == NOT_FINITE for position in range(end)):
                asked = plan.sample[entry] or row.opened.wanted is not None
                row.sequence += [0] * plan.sample[entry]
                results.append(EntryResult(failure=Failure("not finite") if asked else None))
                continue
            if row.opened.wanted is not None:
                first, last = max(row.opened.wanted.start, start + 1), min(end + 1, len(row.prompt))
                if first < last:
                    values = [next_logprob(row.prompt[: position + 1]) for position in range(first, last)]
                    scored = PromptLogprobs(first, values, [TopLogprobs([], [])] * len(values))
            gained: list[int] = []
            edit = None
            if plan.sample[entry]:
                assert len(row.sequence) == end - len(guesses[entry]), "a sample from the middle of the sequence"
                gained, edit = self._sample(row, guesses[entry])
            logprobs = []
            if row.opened.sampling.logprobs is not None:
                first = len(row.sequence) - len(gained)
                logprobs = [
                    SampledLogprob(row.logprob(first + offset), TopLogprobs([], [])) for offset in range(len(gained))
                ]
            results.append(EntryResult(gained, logprobs, scored, edit if row.matcher is not None else None))
        return StepResult(plan.step, results, 0.001)

    def _sample(self, row: Row, guess: list[int]) -> tuple[list[int], GrammarEdit]:
        """The tokens that a row gains, and what its matcher did; the row's sequence goes on with them."""
        gained: list[int] = []
        rewound = forced = 0
        while True:
            tries = row.matcher.tries_here() if row.matcher is not None else 0
            token = next_token(row.sequence, tries, row.opened.sampling.seed)
            rewind, new, held, complete = (
                row.matcher.advance(token) if row.matcher is not None else (0, [token], 0, False)
            )
            row.rewind(rewind)
            rewound += max(rewind - len(gained), 0)
            del gained[max(len(gained) - rewind, 0) :]
            row.sequence += new
            gained += new
            forced += max(len(new) - 1, 0)
            if rewind or complete or not 0 < len(gained) <= len(guess) or gained != guess[: len(gained)]:
                return gained, GrammarEdit(rewound, forced, held, complete)
