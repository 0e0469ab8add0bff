"""A tier below the slots: what is evicted goes out, comes back where it is wanted, and may be waited for."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from fake_worker import completion
from harness import Harness

from sapwood.managers.wire.prefixes import PrefixLoaded
from sapwood.radix.memory_tier import MemoryTier


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(count)]


class SlowTier(MemoryTier):
    """What it holds has to be loaded first, all of a namespace at once; and is forgotten where that fails."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.ready: set[str] = set()

    def load(self, namespace: str, tokens: np.ndarray, limit: int) -> str | None:
        return None if namespace in self.ready else namespace

    def loaded(self, key: str, error: str) -> None:
        if error:
            self.flush()
        self.ready.add(key)


A, B = numbers(1, 120), numbers(2, 150)


def served(harness: Harness, name: str, prompt: list[int], max_tokens: int = 8) -> int:
    """The request is answered right; how many of its tokens were cached."""
    harness.submit(name, prompt, max_tokens)
    harness.run()
    answer = harness.answers[name, 0]
    assert answer.token_ids == completion(prompt, max_tokens, [])
    harness.assert_idle()
    return answer.cached_tokens


def test_an_evicted_prefix_comes_back_from_the_tier() -> None:
    harness = Harness(slots=200, tier=MemoryTier(1000))
    assert served(harness, "a", A) == 0
    assert served(harness, "b", B) == 0
    assert harness.cache.peek("", np.array(A, np.int32), 120) < 119
    computed = harness.worker.computed
    assert served(harness, "a again", A) == 119
    assert harness.worker.computed - computed <= 1 + 8
    assert harness.worker.copied_in > 0
    assert served(harness, "b again", B) == 149


def test_what_the_tier_holds_is_copied_out_once_and_a_full_tier_lets_its_oldest_go() -> None:
    harness = Harness(slots=200, tier=MemoryTier(170))
    for _ in range(3):
        for name, prompt in (("a", A), ("b", B)):
            served(harness, name, prompt)
    assert harness.cache.tier is not None
    assert (
        harness.cache.below("", np.array(A, np.int32), 120) + harness.cache.below("", np.array(B, np.int32), 150) < 270
    )


def test_without_a_tier_no_plan_copies_anything() -> None:
    harness = Harness(slots=200)
    served(harness, "a", A)
    served(harness, "b", B)
    assert harness.cache.take_copies() == []
    assert served(harness, "a again", A) < 119


def test_values_that_nothing_finite_was_computed_from_do_not_go_out() -> None:
    harness = Harness(slots=200, tier=MemoryTier(1000))
    served(harness, "a", A, 0)
    served(harness, "b", B)
    assert harness.cache.below("", np.array(A, np.int32), 120) == 0


def test_flushing_forgets_the_tier_as_well() -> None:
    harness = Harness(slots=200, tier=MemoryTier(1000))
    served(harness, "a", A)
    served(harness, "b", B)
    harness.scheduler.flush()
    assert served(harness, "a again", A) == 0


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["", "the disk is gone"])
def test_a_request_waits_for_its_prefix_while_others_run_and_is_answered_whatever_comes(error: str) -> None:
    harness = Harness(slots=200, tier=SlowTier(1000))
    served(harness, "a", A)
    served(harness, "b", B)
    for name in ("one", "two"):
        harness.submit(name, [*A, *numbers(len(name), 5)], 8)
    harness.submit("other", numbers(3, 20), 8)
    harness.run()
    assert harness.answers["other", 0].finish is not None
    assert harness.scheduler.waiting == 2
    orders = harness.scheduler.take_loads()
    assert len(orders) == 1
    harness.scheduler.prefix_loaded(PrefixLoaded(orders[0].key, error))
    harness.scheduler.audit()
    harness.run()
    for name in ("one", "two"):
        answer = harness.answers[name, 0]
        assert answer.token_ids == completion([*A, *numbers(len(name), 5)], 8, [])
    assert (harness.answers["one", 0].cached_tokens >= 119) == (not error)
    harness.assert_idle()


def test_a_request_that_waits_for_its_prefix_can_be_aborted() -> None:
    harness = Harness(slots=200, tier=SlowTier(1000))
    served(harness, "a", A)
    served(harness, "b", B)
    harness.submit("one", A, 8)
    harness.run()
    assert harness.scheduler.waiting == 1
    harness.scheduler.abort("one")
    harness.scheduler.audit()
    assert harness.scheduler.waiting == 0
    harness.scheduler.prefix_loaded(PrefixLoaded(harness.scheduler.take_loads()[0].key))
    assert served(harness, "again", A) == 119


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda places: MemoryTier(places), lambda places: SlowTier(places)])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_goes_out_and_in_answers_are_right_and_the_books_balance(
    seed: int, make: Callable[[int], MemoryTier]
) -> None:
    rng = random.Random(seed)
    harness = Harness(
        slots=rng.choice([150, 250]),
        chunk=rng.choice([8, 32]),
        max_running=rng.choice([1, 3, 8]),
        tier=make(rng.choice([60, 200, 1000])),
    )
    stems = [numbers(number, 60) for number in range(4)]
    sent: dict[str, tuple[list[int], int]] = {}
    for number in range(16):
        stem = rng.choice(stems)
        prompt = stem[: rng.randrange(1, 61)] + numbers(rng.randrange(3), rng.randrange(20))
        sent[str(number)] = prompt, rng.randrange(20)
        harness.submit(str(number), *sent[str(number)], namespace=rng.choice(["", "salt"]), priority=rng.randrange(2))
        for _ in range(rng.randrange(8)):
            harness.step()
        for order in harness.scheduler.take_loads():
            harness.scheduler.prefix_loaded(PrefixLoaded(order.key))
    while harness.scheduler.waiting or harness.scheduler.running:
        harness.run()
        for order in harness.scheduler.take_loads():
            harness.scheduler.prefix_loaded(PrefixLoaded(order.key))
    for name, (prompt, max_tokens) in sent.items():
        assert harness.answers[name, 0].token_ids == completion(prompt, max_tokens, [])
    harness.assert_idle()
