"""Who waits for a grammar compiler, and who is next: the small before the large, what is known as slow after the rest.

How long a constraint takes shows only when it is compiled; its size is the best guess. Nobody may wait for ever: every
few turns it is the turn of whoever has waited longest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

AGED_TURNS = 4  # one turn in so many goes by arrival

T = TypeVar("T")


@dataclass(eq=False)
class Asked(Generic[T]):
    """Somebody who waits. size: of the constraint, in characters. is_slow: it has shown that it takes long."""

    waiting: asyncio.Future[T]
    size: int
    is_slow: bool


class GrammarQueue(Generic[T]):
    """In order of arrival; there are never more than the requests that a server takes in, so taking looks at all."""

    def __init__(self) -> None:
        self._asked: list[Asked[T]] = []
        self._turns = 0

    @property
    def smallest_fresh(self) -> int | None:
        """The least size of whoever waits and is not known as slow, if there is anybody."""
        return min((each.size for each in self._asked if not (each.is_slow or each.waiting.done())), default=None)

    def add(self, asked: Asked[T]) -> None:
        self._asked.append(asked)

    def take(self, *, with_slow: bool) -> Asked[T] | None:
        """Who is next, if anybody. Whoever has given up is forgotten."""
        self._asked = [each for each in self._asked if not each.waiting.done()]
        able = [each for each in self._asked if with_slow or not each.is_slow]
        if not able:
            return None
        self._turns += 1
        by_age = self._turns % AGED_TURNS == 0
        chosen = able[0] if by_age else min(able, key=lambda each: (each.is_slow, each.size))
        self._asked.remove(chosen)
        return chosen
