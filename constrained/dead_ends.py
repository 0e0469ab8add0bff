"""Beginnings of a completion that were found to lead to no valid one, and the tokens that would go there."""

from __future__ import annotations

import numpy as np

from .vocabulary import Vocabulary


class DeadEnds:
    """A set of byte strings, each a beginning that no completion of this request may have.

    Kept as bytes, not as tokens: whatever tokens spell a dead end, it is found once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._beginnings: set[bytes] = set()
        self._without_end: set[bytes] = set()

    def add(self, beginning: bytes) -> None:
        """No completion may begin so."""
        self._beginnings = {each for each in self._beginnings if not each.startswith(beginning)} | {beginning}

    def add_end(self, completion: bytes) -> None:
        """The completion may not end here."""
        self._without_end.add(completion)

    def holds(self, text: bytes) -> bool:
        """Whether `text` begins with a dead end."""
        return any(text.startswith(each) for each in self._beginnings)

    def bars_end(self, completion: bytes) -> bool:
        """Whether the completion may not end here."""
        return completion in self._without_end

    def is_near(self, text: bytes) -> bool:
        """Whether some way on from `text`, or the end there, is barred."""
        return text in self._without_end or any(each.startswith(text) for each in self._beginnings)

    def remove_from(self, bitmask: np.ndarray, text: bytes) -> np.ndarray:
        """`bitmask`, or a copy of it without the tokens that lead from `text` into a dead end."""
        ahead = [each[len(text) :] for each in self._beginnings if each.startswith(text)]
        barred = [token_id for rest in ahead for token_id in self._vocabulary.starting_with(rest)]
        if barred:
            bitmask = bitmask & ~self._vocabulary.bits(barred)
        return bitmask & ~self._vocabulary.eos_bits if text in self._without_end else bitmask
