"""The prefix cache as the scheduler uses it: sharing, remapping before release, limits, namespaces, pressure."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood.radix.errors import BooksError
from sapwood.radix.lease import Lease
from sapwood.radix.prefix_cache import PrefixCache


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, length, dtype=np.int32)


def start(cache: PrefixCache, tokens: np.ndarray, namespace: str = "") -> Lease:
    """Open a lease for a prompt and give the part that must be computed private slots."""
    lease = cache.open(namespace, tokens, len(tokens) - 1)
    assert cache.grow(lease, len(tokens) - lease.length) is not None
    return lease


def serve(cache: PrefixCache, tokens: np.ndarray, namespace: str = "") -> int:
    """Run a prompt to its end; returns how many of its tokens were cached."""
    lease = start(cache, tokens, namespace)
    cached = lease.shared
    cache.close(lease, tokens)
    cache.audit()
    return cached


def books(cache: PrefixCache) -> tuple[int, int, int, int]:
    return cache.free, cache.private, cache.pinned, cache.evictable


def test_a_request_moves_its_slots_through_all_four_states() -> None:
    cache = PrefixCache(10)
    lease = cache.open("", ids(1, 2, 3), 2)
    assert books(cache) == (10, 0, 0, 0)
    added = cache.grow(lease, 3)
    assert added is not None
    assert added.tolist() == lease.slots.tolist()
    assert books(cache) == (7, 3, 0, 0)
    assert cache.publish(lease, ids(1, 2)) is None
    assert books(cache) == (7, 1, 2, 0)
    cache.close(lease, ids(1, 2, 3))
    assert books(cache) == (7, 0, 0, 3)
    assert cache.flush() == 3
    assert books(cache) == (10, 0, 0, 0)
    assert cache.evicted_tokens == 0
    assert not cache.tree.roots


def test_a_second_request_shares_the_first_ones_slots() -> None:
    cache = PrefixCache(20)
    first = start(cache, ids(1, 2, 3, 4))
    cache.publish(first, ids(1, 2, 3, 4))
    second = cache.open("", ids(1, 2, 3, 9), 3)
    assert second.slots.tolist() == first.slots.tolist()[:3]
    assert (second.shared, second.length) == (3, 3)
    cache.audit()


@pytest.mark.parametrize("length", [1, 2, 200, 201])
def test_r26_a_prompt_that_is_held_whole_still_leaves_a_token_to_compute(length: int) -> None:
    cache = PrefixCache(500)
    tokens = prompt(length)
    cached = [serve(cache, tokens) for _ in range(3)]
    assert cached == [0, length - 1, length - 1]
    assert serve(cache, prompt(200)) == min(199, length)
    assert cache.free + cache.evictable == 500


def test_r26_two_equal_prompts_in_one_batch_work() -> None:
    cache = PrefixCache(500)
    tokens = prompt(200)
    serve(cache, tokens)
    pair = [start(cache, tokens) for _ in range(2)]
    assert [lease.shared for lease in pair] == [199, 199]
    assert pair[0].slots[-1] != pair[1].slots[-1]
    for lease in pair:
        cache.close(lease, tokens)
    cache.audit()
    assert books(cache) == (300, 0, 0, 200)


def test_a_match_ends_at_the_limit_inside_an_edge() -> None:
    cache = PrefixCache(50)
    tokens = prompt(20)
    serve(cache, tokens)
    lease = cache.open("", tokens, 7)
    assert (lease.shared, cache.pinned, cache.evictable) == (7, 7, 13)
    assert cache.open("", tokens, 0).shared == 0
    assert cache.peek("", tokens, 7) == 7
    cache.audit()


def test_r25_equal_prompts_computed_at_once_are_remapped_before_their_copies_are_freed() -> None:
    cache = PrefixCache(450, poison=True)
    tokens = prompt(200)
    a, b = start(cache, tokens), start(cache, tokens)
    own = b.slots.copy()
    assert set(a.slots.tolist()).isdisjoint(own.tolist())
    assert cache.publish(a, tokens) is None
    assert cache.publish(b, tokens) == (0, 200)
    assert b.slots.tolist() == a.slots.tolist()
    assert cache.take_released().tolist() == sorted(own.tolist())
    cache.audit()

    for lease in (a, b):  # both decode on, while others fill and overfill the pool
        assert cache.grow(lease, 20) is not None
    views = a.slots.tolist(), b.slots.tolist()
    for seed in range(1, 8):
        other = start(cache, prompt(150, seed))
        assert set(other.slots.tolist()).isdisjoint(views[0] + views[1])
        cache.close(other, prompt(150, seed))
        cache.audit()
    assert (a.slots.tolist(), b.slots.tolist()) == views
    assert cache.evicted_tokens > 0
    for lease in (a, b):
        cache.close(lease, np.concatenate([tokens, prompt(20, 99)]))
    cache.audit()
    assert (cache.private, cache.pinned) == (0, 0)


def test_only_the_span_that_others_computed_meanwhile_changes() -> None:
    cache = PrefixCache(100)
    serve(cache, ids(1, 2))
    a, b = start(cache, ids(1, 2, 3, 4, 5)), start(cache, ids(1, 2, 3, 4, 6))
    cache.publish(a, ids(1, 2, 3, 4, 5))
    kept = b.slots[4]
    assert cache.publish(b, ids(1, 2, 3, 4, 6)) == (2, 4)
    assert b.slots.tolist() == [*a.slots.tolist()[:4], kept]
    cache.audit()


def test_a_waiting_request_adopts_what_another_publishes_chunk_by_chunk() -> None:
    cache = PrefixCache(100)
    tokens = prompt(50)
    leader, follower = start(cache, tokens), cache.open("", tokens, 49)
    gained = []
    for stop in (20, 20, 33, 50):
        cache.publish(leader, tokens[:stop])
        gained.append(cache.advance(follower, tokens, 49))
        assert follower.slots.tolist() == leader.slots.tolist()[: follower.length]
        cache.audit()
    assert gained == [20, 0, 13, 16]
    assert follower.shared == follower.length == 49
    assert cache.grow(follower, 1) is not None
    with pytest.raises(BooksError, match="1 private slots cannot advance"):
        cache.advance(follower, tokens, 50)


def test_r39_namespaces_share_nothing() -> None:
    cache = PrefixCache(100)
    tokens = prompt(20)
    assert serve(cache, tokens, "a") == 0
    assert cache.peek("b", tokens, 20) == 0
    assert serve(cache, tokens, "b") == 0
    assert serve(cache, tokens, "") == 0
    assert cache.evictable == 60
    assert serve(cache, tokens, "a") == 19
    lease = cache.open("c", tokens, 19)
    follower = start(cache, tokens, "a")
    cache.publish(follower, tokens)
    assert cache.advance(lease, tokens, 19) == 0


def test_growth_evicts_the_least_recently_used_and_only_as_much_as_needed() -> None:
    cache = PrefixCache(12)
    serve(cache, ids(1, 1, 1, 1))
    serve(cache, ids(2, 2, 2, 2))
    serve(cache, ids(1, 1, 1, 1))  # used again: now the younger
    lease = cache.open("", ids(9), 0)
    assert cache.grow(lease, 6) is not None
    assert cache.evicted_tokens == 4
    assert (cache.peek("", ids(1, 1, 1, 1), 4), cache.peek("", ids(2, 2, 2, 2), 4)) == (4, 0)
    cache.audit()


def test_closing_a_lease_counts_as_a_use_of_its_prefix() -> None:
    cache = PrefixCache(12)
    serve(cache, ids(1, 1, 1, 1))
    serve(cache, ids(2, 2, 2, 2))
    long_lived = cache.open("", ids(1, 1, 1, 1), 4)
    serve(cache, ids(2, 2, 2, 2))
    cache.close(long_lived)
    lease = cache.open("", ids(9), 0)
    cache.grow(lease, 5)
    assert (cache.peek("", ids(1, 1, 1, 1), 4), cache.peek("", ids(2, 2, 2, 2), 4)) == (4, 3)


def test_growth_that_cannot_be_had_changes_nothing() -> None:
    cache = PrefixCache(10)
    serve(cache, ids(1, 2, 3, 4))
    lease = start(cache, ids(1, 2, 9))
    before = books(cache), lease.slots.tolist(), cache.version
    assert cache.available == 7
    assert cache.grow(lease, 8) is None
    assert cache.grow_each([lease] * 8) is None
    assert (books(cache), lease.slots.tolist(), cache.version) == before
    assert cache.grow(lease, 7) is not None
    cache.audit()


def test_grow_each_takes_one_slot_for_each_lease_in_their_order() -> None:
    cache = PrefixCache(200)
    leases = [start(cache, prompt(3, seed)) for seed in range(5)]
    for step in range(30):  # past the room that the leases began with
        slots = cache.grow_each(leases)
        assert slots is not None
        assert slots.dtype == np.int32
        assert [lease.slots[-1] for lease in leases] == slots.tolist()
        assert all(lease.length == 4 + step for lease in leases)
    cache.audit()
    assert cache.private == 165


def test_tokens_of_slots_not_computed_yet_stay_private() -> None:
    cache = PrefixCache(20)
    lease = start(cache, ids(1, 2, 3))
    cache.grow(lease, 1)  # the slot of a token that is not known yet
    cache.close(lease, ids(1, 2, 3))
    assert books(cache) == (17, 0, 0, 3)


def test_publishing_less_than_is_shared_changes_nothing() -> None:
    cache = PrefixCache(20)
    lease = start(cache, ids(1, 2, 3))
    cache.publish(lease, ids(1, 2, 3))
    before = cache.version
    assert cache.publish(lease, ids(1, 2)) is None
    assert cache.publish(lease, ids(1, 2, 3)) is None
    assert (cache.version, lease.shared) == (before, 3)


def test_a_cache_that_is_off_shares_nothing_and_keeps_nothing() -> None:
    cache = PrefixCache(20, enabled=False)
    tokens = ids(1, 2, 3)
    first = start(cache, tokens)
    assert cache.publish(first, tokens) is None
    assert (first.shared, cache.private, cache.peek("", tokens, 3)) == (0, 3, 0)
    second = cache.open("", tokens, 2)
    assert (second.length, cache.advance(second, tokens, 2)) == (0, 0)
    cache.audit()
    for lease in (first, second):
        cache.close(lease, tokens[: lease.length])
    assert books(cache) == (20, 0, 0, 0)


def test_released_slots_are_remembered_in_test_mode_only() -> None:
    tokens = ids(1, 2, 3)
    quiet, loud = PrefixCache(20), PrefixCache(20, poison=True)
    for cache in (quiet, loud):
        serve(cache, tokens)
        cache.flush()
    assert quiet.take_released().tolist() == []
    assert loud.take_released().tolist() == [0, 1, 2]
    assert loud.take_released().tolist() == []


def test_neither_prompts_nor_views_alias_the_tree() -> None:
    cache = PrefixCache(20)
    tokens = ids(1, 2, 3)
    lease = start(cache, tokens)
    cache.publish(lease, tokens)
    tokens[:] = 7
    assert cache.peek("", ids(1, 2, 3), 3) == 3
    read_only = np.frombuffer(ids(1, 2, 3, 4).tobytes(), dtype="<i4")
    assert serve(cache, read_only) == 3


def test_a_closed_lease_is_refused_everywhere() -> None:
    cache = PrefixCache(20)
    tokens = ids(1, 2)
    lease = start(cache, tokens)
    cache.close(lease, tokens)
    for call in (
        lambda: cache.close(lease),
        lambda: cache.grow(lease, 1),
        lambda: cache.grow_each([lease]),
        lambda: cache.publish(lease, tokens),
        lambda: cache.advance(lease, tokens, 1),
    ):
        with pytest.raises(BooksError, match="closed lease"):
            call()
    cache.audit()


def test_impossible_arguments_are_refused() -> None:
    cache = PrefixCache(20)
    lease = start(cache, ids(1, 2))
    with pytest.raises(BooksError, match="3 tokens were published of a lease with 2 slots"):
        cache.publish(lease, ids(1, 2, 3))
    with pytest.raises(ValueError, match="limited to -1"):
        cache.open("", ids(1), -1)
    with pytest.raises(ValueError, match="grow by -1"):
        cache.grow(lease, -1)
    with pytest.raises(TypeError, match="int64"):
        cache.peek("", np.array([1, 2], dtype=np.int64), 1)
    cache.audit()
    assert lease.length == 2
