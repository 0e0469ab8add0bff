"""A tier below the slots: where evicted prefixes are kept, in places that no step can read. This is the interface only.

A tier keeps books of places as the prefix cache does of slots; the data moves in the worker, by the copies that each
plan names. What it holds are whole prefixes, each from position 0 on, per namespace. Token arrays are int32 [n].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class SlotCopy:
    """The K and V of `slots` go out to `places`, or come in from there; int32 [n] both. Copies are done in the order in
    which they were decided, since a slot or a place may be used again by a later one."""

    slots: np.ndarray
    places: np.ndarray
    out: bool


class Tier(Protocol):
    """What the prefix cache asks of a tier."""

    def held(self, namespace: str, tokens: np.ndarray, limit: int) -> int:
        """How many leading tokens are held, at most `limit`. No side effects."""
        ...

    def load(self, namespace: str, tokens: np.ndarray, limit: int) -> str | None:
        """See to it that they can be copied in. None: they can be. Else the key under which the worker is to load them;
        until `loaded` says that it has, whoever wants them waits."""
        ...

    def loaded(self, key: str, error: str) -> None:
        """The worker has loaded what was asked for under this key, or cannot: then it is forgotten."""
        ...

    def places(self, namespace: str, tokens: np.ndarray, start: int, limit: int) -> np.ndarray:
        """A use: where positions [start, held) are, int32 [n], to be copied in at once; empty where they are not."""
        ...

    def store(self, namespace: str, tokens: np.ndarray) -> tuple[int, np.ndarray]:
        """Hold `tokens`, or as many of them as there is room for; what it returns has to be copied out at once: the
        first position that was not held before, and the places for those from there on, int32 [n]."""
        ...

    def flush(self) -> None:
        """Forget everything."""
        ...

    def audit(self) -> None:
        """Raise BooksError unless the books are right."""
        ...
