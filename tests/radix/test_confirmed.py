"""What is known to be finite stays; what is not can be dropped with all that is behind it, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood.radix.errors import BooksError
from sapwood.radix.lease import Lease
from sapwood.radix.prefix_cache import PrefixCache


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def run(cache: PrefixCache, tokens: np.ndarray) -> Lease:
    """A lease on all of `tokens`, published."""
    lease = cache.open("", tokens, len(tokens))
    cache.grow(lease, len(tokens) - lease.length)
    cache.publish(lease, tokens)
    return lease


def held(cache: PrefixCache, *tokens: int) -> int:
    return cache.peek("", ids(*tokens), len(tokens))


def test_nothing_is_confirmed_until_it_is_said_and_then_the_whole_path_is() -> None:
    cache = PrefixCache(40)
    run(cache, ids(1, 2))
    lease = run(cache, ids(1, 2, 3, 4))
    assert cache.confirmed("", ids(1, 2, 3, 4)) == 0
    cache.confirm(lease)
    assert cache.confirmed("", ids(1, 2, 3, 4)) == 4
    assert cache.confirmed("", ids(1, 2, 3, 9)) == 3
    run(cache, ids(1, 2, 3, 9, 9))
    assert cache.confirmed("", ids(1, 2, 3, 9, 9)) == 3
    cache.audit()


def test_dropping_takes_what_is_behind_the_last_confirmed_position_and_nothing_beside_it() -> None:
    cache = PrefixCache(40, poison=True)
    good = run(cache, ids(1, 2, 3))
    cache.confirm(good)
    beside = run(cache, ids(1, 2, 7, 7))
    bad = run(cache, ids(1, 2, 3, 4, 5))
    behind = run(cache, ids(1, 2, 3, 4, 6))
    assert set(cache.on_unconfirmed("", ids(1, 2, 3, 4, 5))) == {bad, behind}
    with pytest.raises(BooksError, match="locks"):
        cache.drop_unconfirmed("", ids(1, 2, 3, 4, 5))
    cache.close(bad)
    cache.close(behind)
    before = cache.free
    cache.take_released()
    cache.drop_unconfirmed("", ids(1, 2, 3, 4, 5))
    cache.audit()
    assert cache.free == before + 3
    assert len(cache.take_released()) == 3
    assert held(cache, 1, 2, 3, 4) == 3
    assert held(cache, 1, 2, 7, 7) == 4
    cache.close(beside)
    cache.close(good)
    cache.drop_unconfirmed("", ids(1, 2, 3))
    assert held(cache, 1, 2, 3) == 3


def test_an_empty_namespace_goes_with_what_is_dropped() -> None:
    cache = PrefixCache(10)
    cache.close(run(cache, ids(1, 2)))
    cache.drop_unconfirmed("", ids(1, 2))
    assert not cache.tree.roots
    assert cache.free == 10
    cache.drop_unconfirmed("", ids(1, 2))
    cache.audit()


def test_a_survey_says_what_a_lease_would_take_out_of_the_evictable_and_changes_nothing() -> None:
    cache = PrefixCache(40)
    held_by_somebody = run(cache, ids(1, 2))
    cache.close(run(cache, ids(1, 2, 3, 4)))
    nodes, stamps = [(node.end, node.stamp) for node in cache.tree.nodes()], cache.tree._clock
    for tokens, limit, expected in (
        ((1, 2, 3, 4), 4, (4, 2)),
        ((1, 2, 3, 9), 4, (3, 1)),
        ((1, 2, 3, 4), 2, (2, 0)),
        ((9,), 1, (0, 0)),
    ):
        assert cache.survey("", ids(*tokens), limit) == expected
    assert cache.survey("other", ids(1), 1) == (0, 0)
    assert ([(node.end, node.stamp) for node in cache.tree.nodes()], cache.tree._clock) == (nodes, stamps)
    before = cache.available
    lease = cache.open("", ids(1, 2, 3, 9), 4)
    assert before - cache.available == 1
    cache.close(lease)
    cache.close(held_by_somebody)


def test_releasable_is_what_closing_leases_makes_available() -> None:
    cache = PrefixCache(40)
    leases = [run(cache, ids(1, 2, 3)), run(cache, ids(1, 2, 3, 4)), run(cache, ids(1, 5))]
    cache.grow(leases[2], 4)
    for chosen in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2]):
        expected = cache.releasable([leases[place] for place in chosen])
        before = cache.available
        assert cache.releasable([]) == 0
        for place in chosen:
            cache.close(leases[place])
        assert cache.available - before == expected
        cache.flush()
        for lease in [each for place, each in enumerate(leases) if place not in chosen]:
            cache.close(lease)
        cache.flush()
        leases = [run(cache, ids(1, 2, 3)), run(cache, ids(1, 2, 3, 4)), run(cache, ids(1, 5))]
        cache.grow(leases[2], 4)
