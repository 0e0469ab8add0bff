"""Groups of leases that share a run, against what the slots themselves say."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.radix.lease import Lease
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.radix.sharing import MIN_SHARED, shared_runs


def leases_on(prompts: list[list[int]]) -> list[Lease]:
    """One lease for each prompt, everything but its last token in the tree."""
    cache = PrefixCache(100_000)
    leases = []
    for prompt in prompts:
        tokens = np.array(prompt, dtype=np.int32)
        lease = cache.open("", tokens, len(tokens) - 1)
        cache.grow(lease, len(tokens) - lease.length)
        cache.publish(lease, tokens[:-1])
        leases.append(lease)
    for lease, prompt in zip(leases, prompts):  # what a later prompt split now ends elsewhere
        assert lease.length == len(prompt)
    return leases


def saved(leases: list[Lease], reaches: list[int]) -> int:
    """Slots that need not be read twice, after checking that the groups are right."""
    total, seen = 0, set()
    for run in shared_runs(leases, reaches):
        assert not seen & set(run.members)
        seen |= set(run.members)
        assert run.length >= MIN_SHARED
        first = leases[run.members[0]].slots[: run.length]
        for place in run.members:
            assert run.length <= reaches[place]
            assert np.array_equal(leases[place].slots[: run.length], first)
        total += (len(run.members) - 1) * run.length
    return total


def test_one_prefix_makes_one_group() -> None:
    prefix = list(range(500))
    leases = leases_on([[*prefix, 1000 + i, 1, 2] for i in range(8)])
    reaches = [lease.length - 1 for lease in leases]
    assert saved(leases, reaches) == 7 * 500
    [run] = shared_runs(leases, reaches)
    assert (sorted(run.members), run.length) == (list(range(8)), 500)


def test_of_nested_prefixes_those_that_save_most_are_taken() -> None:
    root = list(range(100))
    left, right = [*root, *range(1000, 2000)], [*root, *range(3000, 4000)]
    leases = leases_on([[*branch, 9000 + i, 1] for i, branch in enumerate([left, left, left, right, right])])
    assert saved(leases, [lease.length - 1 for lease in leases]) == 2 * 1100 + 1100


def test_a_short_prefix_or_a_query_inside_it_makes_no_group() -> None:
    short = leases_on([[*range(MIN_SHARED - 1), 1000 + i, 1] for i in range(4)])
    assert shared_runs(short, [lease.length for lease in short]) == []
    long = leases_on([[*range(200), 1000 + i, 1] for i in range(2)])
    assert shared_runs(long, [199, 201]) == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_groups_of_random_trees_share_what_they_say(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(3) for _ in range(120)]]
    for _ in range(rng.randrange(1, 12)):
        base = rng.choice(prompts)
        prompts.append(base[: rng.randrange(1, len(base))] + [rng.randrange(3) for _ in range(rng.randrange(1, 120))])
    leases = leases_on(prompts)
    saved(leases, [rng.randrange(lease.length + 1) for lease in leases])
