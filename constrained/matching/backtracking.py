"""The search for another way where a value fails its check: depth first over bytes, within a number of tries.

It works on bytes, not on tokens, so that the many ways to cut one text into tokens count as one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .dead_ends import DeadEnds
from .path import Path

MAX_TRIES = 64
"""How often one completion may go back before its request fails."""

MAX_REPEATS = 1000
"""How often it may go back from a name that its object has already and nothing can be added to: names are told at once,
so these tries are cheap, and few names may be left of many."""

MAX_STEPS_BACK = 256
"""At how many positions before a failure another way is looked for, at a mask each."""

PATIENCE = 8
"""After so many failures that got no further, the last choice is no longer taken to be the one that matters. Choices
inside free text are passed over, and of the others 1, then 3, 7 and so on: a check of a whole object may fail for
what was chosen first in it."""

FEW = 20
"""A choice between more next bytes than this is one inside free text."""

MANY_TOKENS = 4096
"""Where more tokens than this may follow, they are taken to begin with more than few bytes."""


class Checks(Protocol):
    """What the completion's values have to satisfy beside the grammar (`constrained.matching.checks.Checker`).

    held_from: where the outermost checked value that is still open begins, as a byte offset in the completion.
    reason: why the last push, or finish, failed. is_repeat: whether for a name that its object has already.
    taken: what must not come next, whatever follows it.
    """

    @property
    def held_from(self) -> int | None: ...
    @property
    def is_repeat(self) -> bool: ...
    @property
    def taken(self) -> list[bytes]: ...
    @property
    def reason(self) -> str: ...
    def push(self, data: bytes) -> bool: ...
    def truncate(self, length: int) -> None: ...
    def finish(self) -> bool: ...


class Backtracking:
    """The checks of one completion, what failed so far, and where to go on from there."""

    def __init__(self, path: Path, checks: Checks) -> None:
        """path: of the completion; it is moved back by `go_back`. checks: at the start."""
        self._path = path
        self._checks = checks
        self._vocabulary = path.matcher.vocabulary
        self._dead_ends = DeadEnds(self._vocabulary)
        self._passed = 0  # how many bytes of the text have passed
        self._failed_at_end = False
        self._reason = ""
        self._tries = self._repeats = 0
        self._is_repeat = False
        self._furthest = -1  # the offset of the failure that got furthest, and how many came after it
        self._stuck = 0

    def mask(self) -> np.ndarray:
        """The matcher's mask (see `Matcher.mask`) without what is known, also to the checks, to lead nowhere."""
        mask = self._dead_ends.remove_from(self._path.matcher.mask(), bytes(self._path.text))
        barred = [token_id for rest in self._checks.taken for token_id in self._vocabulary.starting_with(rest)]
        return mask & ~self._vocabulary.bits(barred) if barred else mask

    def passes(self) -> bool:
        """Whether the path, which has grown, can become a valid completion as far as is known. If not, go back."""
        text = bytes(self._path.text)
        self._failed_at_end = self._is_repeat = False
        if not self._checks.push(text[self._passed :]):
            self._reason, self._is_repeat = self._checks.reason, self._checks.is_repeat
            return False
        if self._dead_ends.holds(text) or (self._dead_ends.is_near(text) and not self.mask().any()):
            return False
        if self._checks.taken and not self.mask().any():
            self._reason = "an object would have a property twice"
            self._is_repeat = True
            return False
        self._passed = len(text)
        return True

    def may_end(self) -> bool:
        """Whether the completion, which passed so far, is valid where it ends here. If not, go back."""
        self._failed_at_end = not self._checks.finish()
        if self._failed_at_end:
            self._reason = self._checks.reason
        return not self._failed_at_end

    def go_back(self, first: int) -> str:
        """Moves the path back to where another way is open. Tokens before index `first` have to stay.

        Returns what to tell the user where there is no other way or no try left, else "".
        """
        self._repeats += self._is_repeat
        self._tries += not self._is_repeat
        if self._tries > MAX_TRIES or self._repeats > MAX_REPEATS:
            return f"{self._reason}; no other way was found in {self._tries + self._repeats - 1} tries"
        failed, floor = self._path.copy(), self._path.start_of(first)
        offset = self._find_failure(bytes(failed.text))
        while not self._take_other_way(failed, offset, floor):
            if not self._dead_ends.forgive():
                return f"{self._reason}; the constraint leaves no other way"
            self._checks.truncate(0)
            self._checks.push(bytes(failed.text[:offset]))
        self._passed = len(self._path.text)
        return ""

    def _take_other_way(self, failed: Path, offset: int, floor: int) -> bool:
        """Moves the path to where something else than in `failed` can follow, from `offset` back to `floor`."""
        while (choice := self._choice(failed, offset, floor)) is not None:
            at, is_last = choice
            if at < len(failed.text):
                self._dead_ends.add(bytes(failed.text[: at + 1]), is_guess=not is_last)
            self._return_to(failed.token_ids, at)
            self._checks.truncate(len(self._path.text))
            if self.mask().any():
                return True
            self._dead_ends.add(bytes(self._path.text))
            offset = len(self._path.text) - 1
        return False

    def _find_failure(self, text: bytes) -> int:
        """Notes the shortest beginning of `text` that fails; gives the offset of the last decision before that."""
        offset = len(text)
        if self._failed_at_end:
            self._dead_ends.add_end(text)
        else:
            self._checks.truncate(self._passed)
            ends = range(self._passed + 1, len(text) + 1)
            fails = (e for e in ends if self._dead_ends.holds(text[:e]) or not self._checks.push(text[e - 1 : e]))
            offset = next(fails, len(text)) - 1
            if not self._dead_ends.holds(text[: offset + 1]):
                self._dead_ends.add(text[: offset + 1])
        self._checks.truncate(offset)
        self._stuck = 0 if offset > self._furthest else self._stuck + 1
        self._furthest = max(self._furthest, offset)
        self._add_equals(text[:offset])
        return offset

    def _add_equals(self, text: bytes) -> None:
        """Notes which other bytes fail after `text` in just the same way: a number may be closed by several."""
        mask = self._mask_at(text)
        for byte in [] if mask is None else self._vocabulary.first_bytes(mask):
            if not self._checks.push(bytes([byte])):
                self._dead_ends.add(text + bytes([byte]))
            self._checks.truncate(len(text))

    def _choice(self, failed: Path, offset: int, floor: int) -> tuple[int, bool] | None:
        """An offset, from `offset` back to `floor`, at which something else than in `failed` may follow.

        And whether it is the last one, which alone leaves nothing out.
        """
        text = bytes(failed.text)
        passed_over = 2 ** max(0, self._stuck - PATIENCE + 1) - 1
        last = best = None
        at, steps = offset, 0
        while at >= floor and steps < MAX_STEPS_BACK and (best is None or passed_over >= 0):
            ways = self._other_ways(text, at)
            steps += 1
            if ways:
                last = at if last is None else last
                if ways <= FEW or self._stuck < PATIENCE:
                    best = at
                    passed_over -= 1
            # Inside free text the other bytes of a token are like its first one.
            at = at - 1 if ways <= FEW or at == 0 else failed.start_before(at)
        at = last if best is None else best
        return None if at is None else (at, at == last)

    def _other_ways(self, text: bytes, offset: int) -> int:
        """How many bytes (or the end) may follow text[:offset] beside the one that does, as far as is known."""
        before = text[:offset]
        mask = self._mask_at(before)
        if mask is None or (offset < len(text) and self._vocabulary.only_first_byte(mask) == text[offset]):
            return 0
        if np.bitwise_count(mask).sum() > MANY_TOKENS:
            return FEW + 1
        closed = self._dead_ends.barred_after(before).union(text[offset : offset + 1])
        ways = set(self._vocabulary.first_bytes(mask)) - closed
        may_end = np.any(mask & self._vocabulary.eos_bits) and not self._dead_ends.bars_end(before)
        return len(ways) + bool(may_end)

    def _mask_at(self, text: bytes) -> np.ndarray | None:
        """The matcher's mask after `text`, a beginning of the path's, which goes back there.

        None where a byte has no token of its own: there is no way to stand between the bytes of a token then.
        """
        self._path.truncate(self._path.tokens_within(len(text)))
        matcher = self._path.matcher
        accepted = 0
        for byte in text[len(self._path.text) :]:
            token_id = self._vocabulary.byte_tokens.get(byte)
            if token_id is None or not matcher.accept(token_id):
                break
            accepted += 1
        is_there = len(self._path.text) + accepted == len(text)
        mask = matcher.mask().copy() if is_there else None
        matcher.rollback(accepted)
        return mask

    def _return_to(self, token_ids: list[int], offset: int) -> None:
        """Moves the path to the last end of a token at or before `offset`."""
        self._path.truncate(self._path.tokens_within(offset))
        for token_id in token_ids[len(self._path) :]:
            if len(self._path.text) + len(self._vocabulary.mark(token_id)) > offset:
                break
            self._path.matcher.accept(token_id)
            self._path.append(token_id)
