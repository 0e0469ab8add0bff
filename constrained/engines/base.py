"""The one interface to grammar engines: a template for each compiled grammar, and a matcher for each completion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from ..vocabulary import Vocabulary


class Matcher(ABC):
    """Where one completion stands in its grammar. End tokens are never given to it: `may_end` stands for them."""

    def __init__(self, vocabulary: Vocabulary, usable: np.ndarray | None = None) -> None:
        """usable: the bitmask of what the grammar may allow, where it names control tokens."""
        self.vocabulary = vocabulary
        self._usable = vocabulary.usable_bits if usable is None else usable
        self._row = np.zeros(vocabulary.words, dtype=np.int32)
        self._is_filled = False  # whether _row is the mask of this position

    def mask(self) -> np.ndarray:
        """Which tokens may come next, int32 [words]; end tokens where the completion may end here.

        To be read only, and only until the matcher moves. All zeros where no token can follow, and after an error.
        """
        if not self._is_filled:
            self._fill(self._row)
            self._row &= self._usable if not self.error else 0
            self._is_filled = True
        return self._row

    def accept(self, token_id: int) -> bool:
        """Go on by one token, unless the grammar does not allow it: then False, and nothing has changed."""
        accepted = self._accept(token_id)
        self._is_filled = self._is_filled and not accepted and not self.error
        return accepted

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens that were accepted."""
        if tokens:
            self._rollback(tokens)
            self._is_filled = False

    @property
    @abstractmethod
    def error(self) -> str:
        """Why the engine gave up, such as a limit on its work; "" where it did not."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Whether the completion may end here."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""

    @abstractmethod
    def forced(self) -> bytes:
        """Bytes that every continuation begins with: not always all of them, and they may end inside a character."""

    @abstractmethod
    def _fill(self, row: np.ndarray) -> None: ...

    @abstractmethod
    def _accept(self, token_id: int) -> bool: ...

    @abstractmethod
    def _rollback(self, tokens: int) -> None: ...


class Template(Protocol):
    """A compiled grammar, loaded for one vocabulary."""

    def start(self) -> Matcher:
        """A matcher at the start, which shares no state with any other. Cheap."""
        ...
