"""Values that are not finite: nothing of the step that gave them, nor anything on top of it, stays for others."""

from __future__ import annotations

import random

import pytest
from fake_worker import NOT_FINITE, Row, completion
from harness import Harness


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(count)]


SHARED, BAD, GOOD = numbers(1, 100), numbers(2, 60), numbers(3, 60)


def assert_right(harness: Harness, name: str, prompt: list[int], max_tokens: int = 4) -> None:
    answer = harness.answers[name, 0]
    assert answer.finish is not None
    assert answer.finish.reason == "length", answer.finish
    assert answer.token_ids == completion(prompt, max_tokens, [])


def assert_failed(harness: Harness, name: str) -> None:
    finish = harness.answers[name, 0].finish
    assert finish is not None
    assert finish.reason == "error"
    assert "not finite" in finish.message


def assert_nothing_spoiled_is_held(harness: Harness) -> None:
    harness.assert_idle()
    for node in harness.cache.tree.nodes():
        assert all(harness.worker.pool[slot] != NOT_FINITE for slot in node.slots.tolist())


def test_chunks_that_were_not_finite_are_not_kept_though_they_were_in_the_tree_before_it_was_known() -> None:
    harness = Harness(chunk=16)
    harness.worker.spoils = lambda step, row, position: step == 1
    harness.submit("bad", BAD, 4)
    harness.run()
    assert_failed(harness, "bad")
    assert_nothing_spoiled_is_held(harness)
    computed = harness.worker.computed
    harness.submit("again", BAD, 4)
    harness.run()
    assert_right(harness, "again", BAD)
    assert harness.answers["again", 0].cached_tokens == 0
    assert harness.worker.computed - computed == len(BAD) + 3


def test_who_leapfrogged_on_them_starts_again_and_answers_right() -> None:
    harness = Harness(chunk=32, slots=2000)
    harness.worker.spoils = lambda step, row, position: row.prompt == SHARED + BAD and position >= len(SHARED) - 30
    harness.submit("bad", SHARED + BAD, 4)
    harness.submit("good", SHARED + GOOD, 4)
    harness.submit("other", SHARED + GOOD[:20], 4)
    harness.run()
    assert_failed(harness, "bad")
    assert_right(harness, "good", SHARED + GOOD)
    assert_right(harness, "other", SHARED + GOOD[:20])
    assert_nothing_spoiled_is_held(harness)


def test_a_step_that_went_wrong_once_fails_nobody_who_read_what_others_computed_in_it() -> None:
    harness = Harness(chunk=32, slots=2000)
    harness.worker.spoils = lambda step, row, position: step == 0
    harness.submit("first", SHARED + BAD, 4)
    while harness.steps < 2:
        harness.step()
    harness.submit("second", SHARED + GOOD, 4)
    harness.run()
    assert_failed(harness, "first")
    assert_right(harness, "second", SHARED + GOOD)
    assert_nothing_spoiled_is_held(harness)


def test_what_finite_output_was_computed_from_stays_and_nobody_on_it_starts_again() -> None:
    harness = Harness(chunk=32, slots=2000)
    harness.submit("before", [*SHARED, 7], 1)
    harness.run()
    harness.submit("stream", SHARED + GOOD, 40)
    for _ in range(5):
        harness.step()
    harness.worker.spoils = lambda step, row, position: row.prompt == SHARED + BAD and position >= len(SHARED)
    harness.submit("bad", SHARED + BAD, 4)
    harness.run()
    assert_failed(harness, "bad")
    assert_right(harness, "stream", SHARED + GOOD, 40)
    assert harness.scheduler.counters.retracted == 0
    harness.submit("after", SHARED + GOOD[:9], 1)
    harness.run()
    assert harness.answers["after", 0].cached_tokens == len(SHARED) + 9 - 1
    assert_nothing_spoiled_is_held(harness)


@pytest.mark.parametrize("ending", ["abort", "stop"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_request_that_ended_while_the_step_was_in_flight_leaves_nothing_of_it(ending: str, steps: int) -> None:
    harness = Harness(chunk=32)
    harness.worker.spoils = lambda step, row, position: step >= steps - 1
    harness.submit("bad", BAD, 40)
    for _ in range(steps - 1):
        harness.step()
    plan = harness.scheduler.plan()
    assert plan is not None
    harness.plans.append(plan)
    if ending == "abort":
        harness.scheduler.abort("bad")
    else:
        harness.scheduler.stop("bad", 0)
    harness.run()
    harness.worker.spoils = lambda step, row, position: False
    for name in ("again", "and again"):
        harness.submit(name, BAD, 4)
        harness.run()
    assert_right(harness, "and again", BAD)
    assert_right(harness, "again", BAD)
    assert_nothing_spoiled_is_held(harness)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_not_finite_no_answer_is_wrong_and_nothing_spoiled_stays(seed: int) -> None:
    """Forks of one prefix in a small pool, some of them bad for good, some steps bad for once."""
    rng = random.Random(seed)
    harness = Harness(chunk=rng.choice([8, 16, 64]), slots=rng.choice([250, 600]), max_running=rng.choice([2, 4, 8]))
    wrong_steps = {rng.randrange(40) for _ in range(rng.randrange(4))}
    wrong_from = rng.randrange(60, 90)
    prompts = [SHARED[: rng.randrange(40, 100)] + numbers(rng.randrange(4), rng.randrange(1, 30)) for _ in range(12)]
    bad = prompts[:3]

    def spoils(step: int, row: Row, position: int) -> bool:
        return step in wrong_steps or (row.prompt in bad and position >= min(wrong_from, len(row.prompt) - 1))

    harness.worker.spoils = spoils
    for number, prompt in enumerate(prompts):
        harness.submit(str(number), prompt, 12, priority=rng.choice([0, 0, 1]))
        for _ in range(rng.randrange(3)):
            harness.step()
        if rng.random() < 0.1:
            harness.scheduler.abort(str(number))
    harness.run()
    for number, prompt in enumerate(prompts):
        answer = harness.answers[str(number), 0]
        assert answer.token_ids == completion(prompt, 12, [])[: len(answer.token_ids)]
        if prompt in bad:
            assert answer.finish is None or answer.finish.reason == "error"
        elif answer.finish is not None and not wrong_steps:
            assert answer.finish.reason == "length"
    harness.worker.spoils = lambda step, row, position: False
    for number, prompt in enumerate(prompts):
        harness.submit(f"again {number}", prompt, 3)
    harness.run()
    for number, prompt in enumerate(prompts):
        answer = harness.answers[f"again {number}", 0]
        assert answer.finish is not None
        if answer.finish.reason == "length":
            assert answer.token_ids == completion(prompt, 3, [])
    harness.assert_idle()
