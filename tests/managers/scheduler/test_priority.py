"""Priorities: who is retracted where room is short, who leaves for whom, and that nobody waits or works in vain."""

from __future__ import annotations

import itertools
import random

import pytest
from fake_worker import completion, next_logprob
from harness import Harness


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(count)]


def right(harness: Harness, name: str, prompt: list[int], max_tokens: int, **options: bool) -> bool:
    return harness.answers[name, 0].token_ids == completion(prompt, max_tokens, [], **options)


def running(harness: Harness) -> set[str]:
    return {request.request_id for request in harness.scheduler._running}


# --- who is retracted -------------------------------------------------------------------------------------------------


def test_where_slots_run_out_the_lowest_priority_is_retracted_however_little_the_others_have_produced() -> None:
    """With 600 slots, as reported: the stream of priority 5, which came last, was the one that had to wait."""
    harness = Harness(slots=600, max_context=500)
    for name, seed in (("low", 1), ("lower", 2)):
        harness.submit(name, numbers(seed, 150), 200, priority=-(seed - 1))
    for _ in range(20):
        harness.step()
    harness.submit("stream", numbers(3, 100), 200, priority=5)
    harness.run()
    steps = harness.answers["stream", 0].steps
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) == 1
    assert harness.scheduler.counters.retracted > 0
    assert harness.answers["low", 0].steps[-1] < harness.answers["lower", 0].steps[-1]
    for name, seed, count in (("low", 1, 150), ("lower", 2, 150), ("stream", 3, 100)):
        assert right(harness, name, numbers(seed, count), 200)
    harness.assert_idle()


def test_among_equals_the_latest_is_retracted_even_if_it_has_produced_most() -> None:
    harness = Harness(slots=300)
    harness.submit("long", numbers(1, 120), 100)
    harness.submit("late", numbers(2, 20), 120)
    while not harness.scheduler.counters.retracted:
        harness.step()
    assert running(harness) == {"long"}
    harness.run()
    assert right(harness, "long", numbers(1, 120), 100)
    assert right(harness, "late", numbers(2, 20), 120)
    harness.assert_idle()


# --- who leaves for whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grammar", [None, "some"])
def test_a_higher_priority_takes_the_only_row_at_once_and_the_other_resumes_exactly(grammar: str | None) -> None:
    harness = Harness(max_running=1)
    harness.submit("low", numbers(1, 40), 100, grammar=grammar)
    for _ in range(15):
        harness.step()
    before = list(harness.answers["low", 0].token_ids)
    assert before
    harness.submit("high", numbers(2, 40), 5, priority=100)
    arrived = harness.steps
    while harness.answers["high", 0].finish is None:
        harness.step()
    assert harness.steps - arrived <= 8
    assert len(harness.answers["low", 0].token_ids) <= len(before) + 2
    harness.run()
    assert right(harness, "high", numbers(2, 40), 5)
    assert right(harness, "low", numbers(1, 40), 100, constrained=grammar is not None)
    assert harness.scheduler.counters.retracted == 1
    harness.assert_idle()


def test_a_higher_priority_takes_the_slots_of_lower_ones_and_of_no_more_than_it_needs() -> None:
    harness = Harness(slots=400)
    for number in range(3):
        harness.submit(str(number), numbers(number, 80), 30, priority=number)
    for _ in range(8):
        harness.step()
    assert running(harness) == {"0", "1", "2"}
    harness.submit("high", numbers(9, 100), 20, priority=10)
    harness.step()
    assert "high" in running(harness)
    assert "2" in running(harness)
    harness.run()
    for number in range(3):
        assert right(harness, str(number), numbers(number, 80), 30)
    assert right(harness, "high", numbers(9, 100), 20)
    harness.assert_idle()


def test_equals_never_take_each_others_rows() -> None:
    harness = Harness(max_running=1)
    for number in range(6):
        harness.submit(str(number), numbers(number, 30), 20, priority=7)
        harness.step()
    harness.run()
    assert harness.scheduler.counters.retracted == 0


def test_nobody_leaves_for_one_that_would_not_fit_even_so() -> None:
    harness = Harness(slots=400)
    harness.submit("high", numbers(1, 200), 60, priority=5)
    harness.submit("low", numbers(2, 20), 60)
    for _ in range(8):
        harness.step()
    assert running(harness) == {"high", "low"}
    harness.submit("large", numbers(3, 250), 4, priority=5)
    for _ in range(10):
        harness.step()
    assert running(harness) == {"high", "low"}
    harness.run()
    assert harness.scheduler.counters.retracted == 0
    assert right(harness, "large", numbers(3, 250), 4)


def test_each_arrival_of_a_higher_priority_takes_a_row_once_at_most() -> None:
    harness = Harness(slots=5000, max_running=4)
    for number in range(4):
        harness.submit(f"low {number}", numbers(number, 60), 60)
    for _ in range(10):
        harness.step()
    for number in range(10):
        harness.submit(f"high {number}", numbers(50 + number, 300), 8, priority=1)
    harness.run()
    assert 4 <= harness.scheduler.counters.retracted <= 10
    first_low = min(harness.answers[f"low {number}", 0].steps[-1] for number in range(4))
    assert all(harness.answers[f"high {number}", 0].steps[-1] < first_low for number in range(10))
    for number in range(4):
        assert right(harness, f"low {number}", numbers(number, 60), 60)
    harness.assert_idle()


def test_a_prompt_that_is_being_scored_is_scored_once_though_it_had_to_leave() -> None:
    prompt = numbers(1, 200)
    for steps in range(1, 8):
        harness = Harness(chunk=32, max_running=1)
        harness.submit("scored", prompt, 1, score_start=1)
        for _ in range(steps):
            harness.step()
        plan = harness.scheduler.plan()
        if plan is not None:
            harness.plans.append(plan)
        harness.submit("high", numbers(2, 10), 0, priority=1)
        harness.run()
        assert harness.answers["scored", 0].scored == [next_logprob(prompt[: end + 1]) for end in range(1, 200)]
        assert harness.answers["high", 0].finish is not None
        harness.assert_idle()


@pytest.mark.parametrize("seed", range(15))
def test_with_many_priorities_in_a_small_pool_everybody_ends_with_the_solo_answer(seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(slots=rng.choice([150, 300]), chunk=rng.choice([8, 32]), max_running=rng.choice([1, 2, 4]))
    shared = numbers(99, 40)
    sent: dict[str, tuple[list[int], int]] = {}
    for number in range(15):
        prompt = shared[: rng.randrange(41)] + numbers(number, rng.randrange(1, 50))
        sent[str(number)] = prompt, rng.randrange(1, 40)
        harness.submit(str(number), *sent[str(number)], priority=rng.randrange(4))
        for _ in range(rng.randrange(6)):
            harness.step()
    harness.run(limit=3000)
    for name, (prompt, max_tokens) in sent.items():
        assert right(harness, name, prompt, max_tokens)
    harness.assert_idle()
