"""Builds one StepPlan. It only collects what the scheduler decided; the arrays' meaning is defined in `StepPlan`."""

from __future__ import annotations

import numpy as np

from ...radix.sharing import shared_runs
from ...radix.tier import SlotCopy
from ...runtime.records import pack_ids
from ...runtime.step import OpenRow, SharedSlots, SlotWrite, StepPlan, TierCopy
from .request import Request


class Entry:
    """One request's part in a step: `count` positions from `start` on, the last of which hold `guesses`.

    void: the request starts again, so it does not matter if what this gives is not finite.
    """

    __slots__ = ("count", "guesses", "request", "samples", "slots", "start", "void")

    def __init__(self, request: Request, start: int) -> None:
        self.request = request
        self.start = start
        self.count = 0
        self.slots: list[np.ndarray] = []
        self.guesses = _NO_TOKENS
        self.samples = False
        self.void = False

    @property
    def end(self) -> int:
        return self.start + self.count


class PlanBuilder:
    """Collects the entries of one step, then gives the message."""

    def __init__(self) -> None:
        self.entries: dict[Request, Entry] = {}

    def compute(self, request: Request, slots: np.ndarray, guesses: np.ndarray | None = None) -> None:
        """Let the step compute the next `len(slots)` positions of a request, into these slots. The last of them are for
        the `guesses` at its next tokens (int32), where there are some."""
        assert request.lease is not None
        entry = self.entries.get(request)
        if entry is None:
            entry = self.entries[request] = Entry(request, request.lease.length - len(slots))
        entry.slots.append(slots)
        entry.count += len(slots)
        if guesses is not None:
            entry.guesses = guesses

    @property
    def tokens(self) -> int:
        """How many tokens the step computes so far."""
        return sum(entry.count for entry in self.entries.values())

    def build(
        self, step: int, closed: list[int], poison: np.ndarray, copies: list[SlotCopy]
    ) -> tuple[StepPlan, list[Entry]]:
        """The message, and its entries in batch order. Decides who samples: whoever reaches the end of its sequence."""
        entries = list(self.entries.values())
        opened: list[OpenRow] = []
        slot_writes: list[SlotWrite] = []
        token_ids: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        for entry in entries:
            request, lease = entry.request, entry.request.lease
            assert lease is not None
            if request.synced is None:
                opened.append(_open_row(request))
                request.synced = 0
            if request.synced < entry.start:
                known_to_worker = pack_ids(lease.slots[request.synced : entry.start])
                slot_writes.append(SlotWrite(request.row, request.synced, known_to_worker))
            request.synced = entry.end
            end = entry.end - len(entry.guesses)
            token_ids.append(request.tokens[entry.start : end])
            if end > request.known:  # the token that the step in flight samples
                token_ids.append(_FED_BACK)
            token_ids.append(entry.guesses)
            slots.extend(entry.slots)
            request.steps_in_flight += 1
            entry.samples = request.wants_more and end == request.prompt_length + request.expected
            if entry.samples:
                request.in_flight += 1
        plan = StepPlan(
            step=step,
            closed=closed,
            opened=opened,
            slot_writes=slot_writes,
            rows=pack_ids([entry.request.row for entry in entries]),
            starts=pack_ids([entry.start for entry in entries]),
            lengths=pack_ids([entry.count for entry in entries]),
            token_ids=_concatenated(token_ids),
            slots=_concatenated(slots),
            sample=bytes(entry.samples for entry in entries),
            poison=pack_ids(poison),
            shared=_shared(entries),
            speculated=_speculated(entries),
            copies=[TierCopy(pack_ids(copy.slots), pack_ids(copy.places), copy.out) for copy in copies],
        )
        return plan, entries


_NO_TOKENS = np.empty(0, dtype=np.int32)
_FED_BACK = np.array([-1], dtype=np.int32)


def _open_row(request: Request) -> OpenRow:
    return OpenRow(
        row=request.row,
        sampling=request.sampling,
        stop_ids=request.stop_ids,
        prompt_ids=pack_ids(request.tokens[: request.prompt_length]),
        output_ids=pack_ids(request.tokens[request.prompt_length :]),
        wanted=request.still_wanted,
        grammar=request.grammar.key if request.grammar is not None else "",
    )


def _shared(entries: list[Entry]) -> list[SharedSlots]:
    leases = [entry.request.lease for entry in entries if entry.request.lease is not None]
    runs = shared_runs(leases, [entry.start for entry in entries])
    return [SharedSlots(run.members, run.length) for run in runs]


def _speculated(entries: list[Entry]) -> bytes:
    if not any(len(entry.guesses) for entry in entries):
        return b""
    return pack_ids([len(entry.guesses) for entry in entries])


def _concatenated(arrays: list[np.ndarray]) -> bytes:
    return pack_ids(np.concatenate(arrays)) if arrays else b""
