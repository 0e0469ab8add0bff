"""A tier whose places are in memory, so that nothing has to be loaded first: a prefix cache of places.

It knows no data: that lies in the worker, in a KV pool of as many places.
"""

from __future__ import annotations

import numpy as np

from .prefix_cache import PrefixCache


class MemoryTier:
    """`total` places; where there is no room, what was used least recently goes. See `Tier`."""

    def __init__(self, total: int) -> None:
        self._cache = PrefixCache(total)

    def held(self, namespace: str, tokens: np.ndarray, limit: int) -> int:
        return self._cache.peek(namespace, tokens, limit)

    def load(self, namespace: str, tokens: np.ndarray, limit: int) -> str | None:
        return None

    def loaded(self, key: str, error: str) -> None:
        raise NotImplementedError("nothing is ever loaded into a tier in memory")

    def places(self, namespace: str, tokens: np.ndarray, start: int, limit: int) -> np.ndarray:
        lease = self._cache.open(namespace, tokens, limit)
        places = lease.slots[start:].copy()
        self._cache.close(lease)
        return places

    def store(self, namespace: str, tokens: np.ndarray) -> tuple[int, np.ndarray]:
        lease = self._cache.open(namespace, tokens, len(tokens))
        start = lease.length
        count = min(len(tokens) - start, self._cache.available)
        self._cache.grow(lease, count)
        places = lease.slots[start:].copy()
        self._cache.close(lease, tokens[: lease.length])
        return start, places

    def flush(self) -> None:
        self._cache.flush()

    def audit(self) -> None:
        self._cache.audit()
