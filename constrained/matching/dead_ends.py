"""Beginnings of a completion that were found to lead to no valid one, and the tokens that would go there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..vocabulary import Vocabulary


class DeadEnds:
    """A set of byte strings, each a beginning that no completion of this request may have.

    Kept as bytes, not as tokens: whatever tokens spell a dead end, it is found once. Some are guesses: they are barred
    so that others are tried first, and forgiven when there are no others.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: set[bytes] = set()
        self._guessed: set[bytes] = set()
        self._without_end: set[bytes] = set()

    def add(self, beginning: bytes, is_guess: bool = False) -> None:
        """No completion may begin so. What follows from guesses is a guess itself."""
        is_guess = is_guess or any(each.startswith(beginning) for each in self._guessed)
        self._known = {each for each in self._known if is_guess or not each.startswith(beginning)}
        self._guessed = {each for each in self._guessed if not each.startswith(beginning)}
        (self._guessed if is_guess else self._known).add(beginning)

    def add_end(self, completion: bytes) -> None:
        """The completion may not end here."""
        self._without_end.add(completion)

    def forgive(self) -> bool:
        """Forgets all guesses; whether there were any."""
        forgiven = bool(self._guessed)
        self._guessed = set()
        return forgiven

    def holds(self, text: bytes) -> bool:
        """Whether `text` begins with a dead end."""
        return any(text.startswith(each) for each in self._all())

    def barred_after(self, text: bytes) -> set[int]:
        """The next bytes that make `text`, which holds none, a dead end."""
        size = len(text)
        return {each[size] for each in self._all() if len(each) == size + 1 and each.startswith(text)}

    def bars_end(self, completion: bytes) -> bool:
        """Whether the completion may not end here."""
        return completion in self._without_end

    def is_near(self, text: bytes) -> bool:
        """Whether some way on from `text`, or the end there, is barred."""
        return text in self._without_end or any(each.startswith(text) for each in self._all())

    def remove_from(self, bitmask: np.ndarray, text: bytes) -> np.ndarray:
        """`bitmask`, or a copy of it without the tokens that lead from `text` into a dead end."""
        ahead = [each[len(text) :] for each in self._all() if each.startswith(text)]
        barred = [token_id for rest in ahead for token_id in self._vocabulary.starting_with(rest)]
        if barred:
            bitmask = bitmask & ~self._vocabulary.bits(barred)
        return bitmask & ~self._vocabulary.eos_bits if text in self._without_end else bitmask

    def _all(self) -> Iterator[bytes]:
        return itertools.chain(self._known, self._guessed)
