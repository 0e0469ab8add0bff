"""The eviction policy: which leaf goes first is one class; the tree and its queue hold for another one as well."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sapwood.radix.eviction import EvictionPolicy, LeastRecentlyUsed
from sapwood.radix.node import Node, Rank
from sapwood.radix.prefix_cache import PrefixCache


class LeastOftenUsed:
    """By number of uses, then by last use."""

    def rank(self, node: Node, *, is_new: bool) -> Rank:
        before = 0 if is_new or not isinstance(node.rank, tuple) else node.rank[0]
        return (before + 1, node.stamp)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def serve(cache: PrefixCache, tokens: np.ndarray) -> None:
    lease = cache.open("", tokens, len(tokens) - 1)
    cache.grow(lease, len(tokens) - lease.length)
    cache.close(lease, tokens)


def first_to_go(policy: EvictionPolicy | None) -> set[int]:
    """Of two prompts, 1 … which was used often and 2 … which was used last, those that an eviction leaves."""
    cache = PrefixCache(20, policy=policy)
    for _ in range(5):
        serve(cache, ids(1, 1, 1, 1))
    serve(cache, ids(2, 2, 2, 2))
    lease = cache.open("", ids(3, 3), 0)
    cache.grow(lease, cache.free + 1)
    cache.audit()
    return {first for first in (1, 2) if cache.peek("", ids(first, first, first, first), 4) == 4}


@pytest.mark.parametrize("policy", [None, LeastRecentlyUsed()])
def test_by_default_the_least_recently_used_goes_first(policy: EvictionPolicy | None) -> None:
    assert first_to_go(policy) == {2}


def test_another_policy_is_one_class_that_the_cache_is_given() -> None:
    assert first_to_go(LeastOftenUsed()) == {1}


@pytest.mark.parametrize("seed", range(10))
def test_the_books_balance_under_another_policy(seed: int) -> None:
    rng = random.Random(seed)
    cache = PrefixCache(60, policy=LeastOftenUsed())
    for _ in range(200):
        serve(cache, np.array([rng.randrange(2) for _ in range(rng.randrange(1, 20))], np.int32))
        cache.audit()
    assert cache.evicted_tokens > 0
