"""Waiting is no use of a prefix: a request that is not admitted leaves the tree and its order of eviction alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fake_worker import completion
from harness import Harness

from sapwood.radix.node import Node


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(count)]


OLD, NEW = numbers(1, 60), numbers(2, 60)


def with_two_prefixes(**options: int) -> Harness:
    """OLD was used before NEW."""
    harness = Harness(**options)  # type: ignore[arg-type]
    for name, prompt in (("old", OLD), ("new", NEW)):
        harness.submit(name, prompt, 1)
        harness.run()
    return harness


def uses(harness: Harness, prompt: list[int]) -> list[tuple[int, int, object]]:
    """The nodes on the path of a prompt: where they end, when they were used, and how the policy ranks them."""
    found: list[tuple[int, int, object]] = []
    node: Node = harness.cache.tree.roots[""]
    while node.end < len(prompt) and prompt[node.end] in node.children:
        node = node.children[prompt[node.end]]
        found.append((node.end, node.stamp, node.rank))
    return found


def held(harness: Harness, prompt: list[int]) -> int:
    return harness.cache.peek("", np.array(prompt, np.int32), len(prompt))


def test_who_waits_for_slots_changes_neither_the_recency_of_its_prefix_nor_the_shape_of_the_tree() -> None:
    harness = with_two_prefixes(slots=400)
    harness.submit("runs", numbers(3, 100), 60)
    harness.step()
    before = uses(harness, OLD)
    harness.submit("waits", OLD[:40] + numbers(4, 230), 40)
    for _ in range(20):
        harness.step()
    assert harness.scheduler.waiting == 1
    assert uses(harness, OLD) == before
    harness.run()
    assert harness.answers["waits", 0].token_ids == completion(OLD[:40] + numbers(4, 230), 40, [])
    assert harness.answers["waits", 0].cached_tokens == 40


@pytest.mark.parametrize("waiting", [1, 128])
def test_who_is_too_long_to_enter_now_does_not_keep_its_prefix_from_going_first(waiting: int) -> None:
    harness = with_two_prefixes(slots=2000, chunk=32, max_running=16)
    for number in range(2):
        harness.submit(f"long {number}", numbers(10 + number, 600), 1)
    for _ in range(3):
        harness.step()
    before = uses(harness, OLD)
    for number in range(waiting):
        harness.submit(f"waits {number}", OLD + numbers(20 + number, 200), 1)
    for _ in range(6):
        harness.step()
    assert harness.scheduler.waiting == waiting
    assert uses(harness, OLD) == before
    lease = harness.cache.open("", np.array([49] * 10, np.int32), 0)
    assert harness.cache.grow(lease, harness.cache.free + 1) is not None
    assert held(harness, OLD) < held(harness, NEW) == 60
    harness.cache.close(lease)


def test_who_enters_does_use_its_prefix() -> None:
    harness = with_two_prefixes(slots=2000)
    before = uses(harness, OLD)
    harness.submit("again", OLD, 1)
    harness.run()
    assert uses(harness, OLD)[0][1] > uses(harness, NEW)[0][1] > before[0][1]
