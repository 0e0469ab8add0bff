"""The requests that run: their rows in the worker, their leases, and who of them goes first where room is short.

It must never decide what a step computes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...radix.lease import Lease
from ...radix.prefix_cache import PrefixCache
from .request import Request

DECODE_RESERVE = 32  # slots kept for each running request's coming tokens when another one asks to be admitted


class RunningRequests:
    """In order of admission."""

    def __init__(self, cache: PrefixCache, max_running: int) -> None:
        self._cache = cache
        self._requests: list[Request] = []
        self._rows = list(range(max_running - 1, -1, -1))
        self._closed_rows: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def free_rows(self) -> int:
        return len(self._rows)

    def enter(self, request: Request, lease: Lease) -> None:
        """Give a request a row; it runs from now on."""
        request.admit(lease, self._rows.pop())
        self._requests.append(request)

    def leave(self, request: Request, *, keep: bool = True) -> None:
        """Take a request's row and lease away; with `keep`, what it computed stays in the tree."""
        assert request.lease is not None
        computed = min(request.lease.length, request.known)
        self._cache.close(request.lease, request.tokens[:computed] if keep else None)
        self._requests.remove(request)
        self._rows.append(request.row)
        if request.synced is not None:  # else the worker never heard of it
            self._closed_rows.append(request.row)
        request.leave()

    def take_closed_rows(self) -> list[int]:
        """The rows that the worker must forget, since the last call."""
        closed, self._closed_rows = self._closed_rows, []
        return closed

    def victim(self) -> Request:
        """Who is retracted first: the latest arrival of the lowest priority. So the first arrival of the highest one
        always goes on, and with it the whole."""
        return min(self._requests, key=_retraction_order)

    def below(self, priority: int) -> list[Request]:
        """Those of a lower priority, in the order in which they are retracted."""
        return sorted((request for request in self._requests if request.priority < priority), key=_retraction_order)

    def promised(self) -> int:
        """Slots that will be asked for soon."""
        return sum(map(promise, self._requests))

    def audit(self) -> None:
        """Raise AssertionError unless rows and private slots are right."""
        rows = [request.row for request in self._requests] + self._rows
        if len(set(rows)) != len(rows):
            raise AssertionError(f"a row is used twice: {sorted(rows)}")
        private = sum(request.lease.private for request in self._requests if request.lease is not None)
        if private != self._cache.private:
            raise AssertionError(f"running requests hold {private} private slots, the cache says {self._cache.private}")


def promise(request: Request) -> int:
    """Slots that a running request will ask for soon: the rest of its prefill and some of its completion."""
    return request.to_prefill + min(request.tokens_to_come, DECODE_RESERVE)


def _retraction_order(request: Request) -> tuple[int, int, int]:
    return (request.priority, -request.arrival, -request.serial)
