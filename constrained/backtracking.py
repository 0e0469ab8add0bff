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

MAX_STEPS_BACK = 1024
"""How many bytes one failure may be followed back in search of another way."""

PATIENCE = 4
"""After so many failures of the same value, another way is looked for where only few are open (at a key, an enum, a
number) before one inside free text, where nearly everything is allowed and hardly anything makes a difference."""

FEW = 20
"""How many different next bytes are few."""


class Checks(Protocol):
    """What the completion's values have to satisfy beside the grammar (`constrained.checks.Checker`).

    held_from: where the outermost checked value that is still open begins, as a byte offset in the completion.
    reason: why the last push, or finish, failed.
    """

    @property
    def held_from(self) -> int | None: ...
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
        self._tries = 0
        self._value = -1  # where the value begins that failed last, and how often it has failed
        self._tries_at_value = 0

    def mask(self) -> np.ndarray:
        """The matcher's mask (see `Matcher.mask`) without what is known to lead nowhere."""
        return self._dead_ends.remove_from(self._path.matcher.mask(), bytes(self._path.text))

    def passes(self) -> bool:
        """Whether the path, which has grown, can become a valid completion as far as is known. If not, go back."""
        text = bytes(self._path.text)
        self._failed_at_end = False
        if not self._checks.push(text[self._passed :]):
            self._reason = self._checks.reason
            return False
        if self._dead_ends.holds(text) or (self._dead_ends.is_near(text) and not self.mask().any()):
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
        self._tries += 1
        if self._tries > MAX_TRIES:
            return f"{self._reason}; no other way was found in {MAX_TRIES} tries"
        text, token_ids = bytes(self._path.text), list(self._path.token_ids)
        floor = self._path.start_of(first)
        offset = self._find_failure(text)
        while (choice := self._last_choice(text, offset, floor)) is not None:
            if choice < len(text):
                self._dead_ends.add(text[: choice + 1])
            self._return_to(token_ids, choice)
            if self.mask().any():
                break
            self._dead_ends.add(bytes(self._path.text))
            offset = len(self._path.text) - 1
        if choice is None:
            return f"{self._reason}; the constraint leaves no other way"
        self._passed = len(self._path.text)
        self._checks.truncate(self._passed)
        return ""

    def _find_failure(self, text: bytes) -> int:
        """Notes the shortest beginning of `text` that fails; gives the offset of the last decision before that."""
        offset = len(text)
        if self._failed_at_end:
            self._dead_ends.add_end(text)
        else:
            self._checks.truncate(self._passed)
            ends = range(self._passed + 1, len(text) + 1)
            fails = (e for e in ends if not self._checks.push(text[e - 1 : e]) or self._dead_ends.holds(text[:e]))
            offset = next(fails, len(text)) - 1
            self._dead_ends.add(text[: offset + 1])
        self._checks.truncate(offset)
        value = -1 if self._checks.held_from is None else self._checks.held_from
        self._tries_at_value = self._tries_at_value + 1 if value == self._value else 1
        self._value = value
        self._add_equals(text[:offset])
        return offset

    def _add_equals(self, text: bytes) -> None:
        """Notes which other bytes fail after `text` in just the same way: a number may be closed by several."""
        mask = self._mask_at(text)
        for byte in [] if mask is None else self._vocabulary.first_bytes(mask):
            if not self._checks.push(bytes([byte])):
                self._dead_ends.add(text + bytes([byte]))
            self._checks.truncate(len(text))

    def _last_choice(self, text: bytes, offset: int, floor: int) -> int | None:
        """The last offset, from `offset` back to `floor`, at which something other than `text` may follow."""
        last = None
        for each in range(offset, max(floor, offset - MAX_STEPS_BACK) - 1, -1):
            ways = self._other_ways(text, each)
            if ways and (ways <= FEW or self._tries_at_value <= PATIENCE):
                return each
            if ways and last is None:
                last = each
        return last

    def _other_ways(self, text: bytes, offset: int) -> int:
        """How many bytes (or the end) may follow text[:offset] beside the one that does, as far as is known."""
        before = text[:offset]
        mask = self._mask_at(before)
        if mask is None or (offset < len(text) and self._vocabulary.only_first_byte(mask) == text[offset]):
            return 0
        taken = text[offset : offset + 1]
        ways = [bytes([byte]) for byte in self._vocabulary.first_bytes(mask)]
        open_ways = [way for way in ways if way != taken and not self._dead_ends.holds(before + way)]
        may_end = np.any(mask & self._vocabulary.eos_bits) and not self._dead_ends.bars_end(before)
        return len(open_ways) + bool(may_end)

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
            if len(self._path.text) + len(self._vocabulary.token_bytes[token_id]) > offset:
                break
            self._path.matcher.accept(token_id)
            self._path.append(token_id)
