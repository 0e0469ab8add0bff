"""The waiting queue: priority first, then the longest cached prefix, with an age from which nobody is passed over.

It decides order only; whether a request is admitted is the scheduler's business.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from ...radix.prefix_cache import PrefixCache
from .request import Request

WINDOW = 128  # requests, oldest first, among which the longest prefix is looked for; bounds the cost of a pass
MAX_BYPASSED = 16  # passes in which later arrivals may be admitted first

_Key = tuple[int, int, int, int]


def _arrival_order(request: Request) -> _Key:
    return (-request.priority, 0 if request.retracted else 1, request.arrival, request.serial)


class WaitingQueue:
    """Requests that wait for a row and slots. `schedule` is "lpm" (longest prefix match) or "fcfs"."""

    def __init__(self, schedule: str) -> None:
        self._by_match = schedule == "lpm"
        self._entries: list[tuple[_Key, Request]] = []
        self._matches: dict[Request, int] = {}
        self._matched_version = -1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def highest_priority(self) -> int | None:
        """Of those that wait; None where nobody does."""
        return self._entries[0][1].priority if self._entries else None

    def add(self, request: Request) -> None:
        """Queue a request; one that was retracted goes before all others of its priority."""
        insort(self._entries, (_arrival_order(request), request), key=lambda entry: entry[0])

    def remove(self, request: Request) -> None:
        """Take a request out. Raises KeyError where it is not queued."""
        place = bisect_left(self._entries, _arrival_order(request), key=lambda entry: entry[0])
        if place == len(self._entries) or self._entries[place][1] is not request:
            raise KeyError(request.key)
        del self._entries[place]
        self._matches.pop(request, None)

    def in_order(self, cache: PrefixCache) -> list[Request]:
        """The requests to try for admission, best first; at most `WINDOW` of them."""
        window = [request for _, request in self._entries[:WINDOW]]
        if not self._by_match or len(window) < 2:
            return window

        def rank(request: Request) -> tuple[int, int, int, int, int]:
            if request.retracted or is_aged(request):
                return (-request.priority, 0 if request.retracted else 1, 0, request.arrival, request.serial)
            return (-request.priority, 2, -self.match(request, cache), request.arrival, request.serial)

        return sorted(window, key=rank)

    def match(self, request: Request, cache: PrefixCache) -> int:
        """How many leading tokens of a waiting request are cached; remembered until that may have changed."""
        if cache.version != self._matched_version:
            self._matches.clear()
            self._matched_version = cache.version
        match = self._matches.get(request)
        if match is None:
            match = cache.peek(request.namespace, request.tokens, request.match_limit)
            self._matches[request] = match
        return match

    def note_admitted(self, admitted: list[Request]) -> None:
        """Count a pass against every request that arrived before one which was admitted now."""
        if not admitted:
            return
        last = max(request.arrival for request in admitted)
        for _, request in self._entries[:WINDOW]:
            if request.arrival < last:
                request.bypassed += 1


def is_aged(request: Request) -> bool:
    """Whether others may no longer be admitted before this request."""
    return request.retracted or request.bypassed >= MAX_BYPASSED
