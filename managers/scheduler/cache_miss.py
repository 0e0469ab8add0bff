"""Why a prompt has to be computed from some position on. It decides nothing, and must stay cheap: all requests ask."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ...radix.prefix_cache import PrefixCache
from ..wire.answers import CacheMiss
from .request import Request

_ASKED = 64  # running requests, at most


def cache_miss(cache: PrefixCache, running: Iterable[Request], request: Request) -> CacheMiss:
    """Of a request that is about to compute the first token of its prompt; its lease ends in the tree."""
    lease = request.lease
    assert lease is not None
    position = lease.length
    if not cache.enabled:
        return CacheMiss(position, "cache_off", [])
    if position >= request.match_limit:
        is_last = position >= request.known - 1
        return CacheMiss(position, "last_token" if is_last else "wanted_positions", [])
    miss = cache.miss(lease, request.tokens)
    if any(_computes(other, request, position) for other in islice(running, _ASKED)):
        return CacheMiss(position, "being_computed", [])
    return CacheMiss(position, "evicted" if miss.evicted else "never_seen", miss.continuation.tolist(), miss.elsewhere)


def _computes(other: Request, request: Request, position: int) -> bool:
    """Whether another request computes, right now and for itself, what this one goes on with."""
    if other is request or other.lease is None or request.lease is None or other.lease.node is not request.lease.node:
        return False
    return other.known > position and other.tokens[position] == request.tokens[position]
