"""Where a prompt leaves the tree, and what was there once: told without a walk, and rightly after any history."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.radix import evicted_paths
from sapwood.radix.evicted_paths import EvictedPaths, digest_of
from sapwood.radix.miss import SHOWN, Miss
from sapwood.radix.prefix_cache import PrefixCache


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def hold(cache: PrefixCache, tokens: np.ndarray, namespace: str = "") -> None:
    """As a request that computes these tokens and ends."""
    lease = cache.open(namespace, tokens, len(tokens))
    assert cache.grow(lease, len(tokens) - lease.length) is not None
    cache.close(lease, tokens)


def miss(cache: PrefixCache, tokens: np.ndarray, namespace: str = "") -> tuple[int, Miss]:
    """Where these tokens leave the tree, and what is known there. The cache stays as it was, but for splits."""
    lease = cache.open(namespace, tokens, len(tokens) - 1)
    found = lease.length, cache.miss(lease, tokens)
    cache.close(lease)
    return found


def test_the_tree_goes_on_with_something_else() -> None:
    cache = PrefixCache(100)
    hold(cache, ids(1, 2, 3, 4, 5))
    position, found = miss(cache, ids(1, 2, 3, 9, 9))
    assert (position, found.continuation.tolist(), found.evicted) == (3, [4, 5], False)
    position, found = miss(cache, ids(1, 2, 3, 4, 5, 6, 7))
    assert (position, found.continuation.tolist(), found.evicted) == (5, [], False)


def test_of_several_branches_the_one_used_last_is_shown_and_little_of_it() -> None:
    cache = PrefixCache(1000)
    hold(cache, ids(1, *range(100, 150)))
    hold(cache, ids(1, *range(200, 250)))
    assert miss(cache, ids(1, 7, 7))[1].continuation.tolist() == [*range(200, 200 + SHOWN)]
    hold(cache, ids(1, *range(100, 150)))
    assert miss(cache, ids(1, 7, 7))[1].continuation.tolist() == [*range(100, 100 + SHOWN)]


def test_what_was_evicted_is_known_until_it_is_back() -> None:
    cache = PrefixCache(60)
    old, new = ids(1, 2, *range(10, 40)), ids(1, 2, *range(50, 80))
    hold(cache, old)
    hold(cache, new)  # evicts the first one's tail
    position, found = miss(cache, old)
    assert (position, found.evicted) == (2, True)
    assert not miss(cache, ids(1, 2, 10, 99, 99))[1].evicted, "one token alike is not that text"
    assert not miss(cache, ids(1, 2, 99))[1].evicted
    hold(cache, old)
    assert miss(cache, old)[0] == len(old) - 1


def test_what_is_evicted_with_all_that_is_above_it_is_known_from_the_root_and_from_any_new_branch() -> None:
    cache = PrefixCache(100)
    old = ids(*range(1, 60))
    hold(cache, old)
    cache.flush()
    assert not cache.tree.roots
    position, found = miss(cache, old)
    assert (position, found.evicted) == (0, True)
    hold(cache, ids(*range(1, 30), 99))  # brings a part of it back
    position, found = miss(cache, old)
    assert (position, found.evicted) == (29, True)
    assert not miss(cache, ids(*range(1, 30), 77, 77))[1].evicted


def test_another_namespace_is_told_apart_from_the_own_one() -> None:
    cache = PrefixCache(100)
    text = ids(*range(1, 40))
    hold(cache, text, "a")
    position, found = miss(cache, text, "b")
    assert (position, found.evicted, found.continuation.tolist()) == (0, False, [])
    assert found.elsewhere == len(text)
    cache.flush()
    assert miss(cache, text, "a")[1].evicted
    position, found = miss(cache, text, "b")
    assert (found.evicted, found.elsewhere) == (False, 0), "what another namespace lost is not this one's affair"


def test_the_hash_of_a_path_does_not_depend_on_its_cuts() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 2**31 - 1, 3000, dtype=np.int32)
    whole = digest_of(17, tokens)
    for cut in (1, 2, 1023, 1024, 1025, 2048, 2999):
        assert digest_of(digest_of(17, tokens[:cut]), tokens[cut:]) == whole
    other = tokens.copy()
    other[5] += 1
    assert digest_of(17, other) != whole
    assert digest_of(18, tokens) != whole
    by_hand = 17
    for token in tokens.tolist():
        by_hand = (by_hand * evicted_paths._BASE + token) % 2**64
    assert by_hand == whole


def test_the_memory_is_bounded_in_number_and_in_tokens() -> None:
    paths = EvictedPaths()
    for i in range(evicted_paths.MAX_PATHS + 10):
        paths.note(i, 0, ids(1))
    assert len(paths) == evicted_paths.MAX_PATHS
    assert not paths.had(9, 0, ids(1))
    assert paths.had(10, 0, ids(1))
    long = np.zeros(evicted_paths.MAX_TOKENS // 2, dtype=np.int32)
    for i in range(3):
        paths.note(-1 - i, 0, long)
    assert not paths.had(-1, 0, long)
    assert paths.had(-2, 0, long)
    assert len(paths) == 2
    paths.note(-4, 0, np.zeros(evicted_paths.MAX_TOKENS + 1, dtype=np.int32))
    assert len(paths) == 0
    paths.note(1, 0, ids(1))
    assert len(paths) == 1, "the count of tokens went wrong"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_after_any_history_evicted_means_that_it_was_there_and_is_not(seed: int, slots: int) -> None:
    """What was held, and is not, was evicted; and of what was not, at least the next token was."""
    rng = random.Random(seed)
    cache = PrefixCache(slots)
    once: set[tuple[int, ...]] = set()  # every prefix that was ever held
    for _ in range(40):
        tokens = ids(*(rng.randrange(2) for _ in range(rng.randrange(2, min(slots, 14)))))
        if rng.random() < 0.1:
            cache.flush()
        position, found = miss(cache, tokens)
        if position < len(tokens) - 1:
            was_there = tuple(tokens.tolist()) in once
            assert found.evicted or not was_there
            assert not found.evicted or tuple(tokens[: position + 1].tolist()) in once
        hold(cache, tokens)
        once.update(tuple(tokens[:n].tolist()) for n in range(1, len(tokens) + 1))
        cache.audit()
