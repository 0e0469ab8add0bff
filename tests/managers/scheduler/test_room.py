"""What happens where slots or rows run out, and who goes first."""

from __future__ import annotations

import itertools

from fake_worker import completion
from harness import Harness, numbers

from sapwood.managers.scheduler.waiting_queue import MAX_BYPASSED

# --- slots run out ----------------------------------------------------------------------------------------------------


def test_one_request_may_fill_the_whole_pool() -> None:
    """R28 (a), after the door has capped max_tokens to what fits."""
    harness = Harness(slots=256)
    harness.submit("a", numbers(1, 100), 156)
    harness.run()
    assert harness.answers["a", 0].token_ids == completion(numbers(1, 100), 156, [])


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    harness = Harness(slots=256)
    harness.submit("a", numbers(1, 100), 157)
    finish = harness.answers["a", 0].finish
    assert finish is not None
    assert finish.reason == "error"
    assert "100" in finish.message
    assert "256" in finish.message
    harness.assert_idle()


def test_requests_that_only_fit_one_by_one_all_end_with_their_solo_answer() -> None:
    """R28 (b)."""
    harness = Harness(slots=256)
    for number in range(3):
        harness.submit(f"{number}", numbers(number, 60), 100)
    harness.run()
    assert harness.scheduler.counters.retracted > 0, "the pool was meant to be too small"
    for number in range(3):
        assert harness.answers[f"{number}", 0].token_ids == completion(numbers(number, 60), 100, [])
    harness.assert_idle()


def test_a_retracted_request_resumes_before_any_that_wait_and_its_own_tokens_are_no_hits() -> None:
    harness = Harness(slots=256)
    for number in range(2):
        harness.submit(f"{number}", numbers(number, 60), 100)
    while not harness.scheduler.counters.retracted:
        harness.step()
    retracted = next(name for name in ("0", "1") if not any(r.request_id == name for r in harness.scheduler._running))
    for number in range(2, 6):
        harness.submit(f"{number}", numbers(number, 60), 100)
    harness.run()
    resumed = next(step for step in harness.answers[retracted, 0].steps if step > harness.answers["2", 0].steps[0] - 1)
    assert resumed <= harness.answers["2", 0].steps[0]
    assert all(answer.cached_tokens == 0 for answer in harness.answers.values())
    assert all(len(answer.token_ids) == 100 for answer in harness.answers.values())


def test_a_full_queue_refuses_at_once_and_says_so() -> None:
    harness = Harness(max_queue=2, max_running=1)
    for number in range(4):
        harness.submit(f"{number}", numbers(number, 20), 5)
    overloaded = [answer.finish for answer in harness.answers.values() if answer.finish is not None]
    assert [finish.fault for finish in overloaded] == ["load", "load"]
    harness.run()
    assert harness.answers["0", 0].token_ids == completion(numbers(0, 20), 5, [])


# --- fairness ---------------------------------------------------------------------------------------------------------


def test_a_stream_gets_a_token_every_step_whatever_arrives() -> None:
    """R30: and no step computes more than the budget."""
    harness = Harness(slots=50_000, chunk=64)
    harness.submit("stream", numbers(0, 10), 200)
    for number in range(200):
        harness.step()
        if number % 10 == 0:
            harness.submit(f"long {number}", numbers(number + 1, 1000), 1)
    steps = harness.answers["stream", 0].steps
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) == 1
    assert harness.worker.largest_step <= 64 + 1


def test_a_short_prompt_does_not_wait_for_a_whole_long_one() -> None:
    harness = Harness(slots=50_000, chunk=64)
    for name in ("long 1", "long 2", "long 3"):
        harness.submit(name, numbers(len(name) + ord(name[-1]), 3000), 1)
    for _ in range(4):
        harness.step()
    harness.submit("short", numbers(1, 20), 1)
    before = harness.steps
    while not harness.answers["short", 0].token_ids:
        harness.step()
    assert harness.steps - before <= 4
    assert not harness.answers["long 1", 0].token_ids


def test_the_oldest_prefill_advances_under_a_stream_of_short_prompts() -> None:
    harness = Harness(slots=50_000, chunk=64, max_running=64)
    harness.submit("long", numbers(0, 1000), 1)
    for number in range(200):
        harness.submit(f"short {number}", numbers(number + 1, 40), 1)
        harness.step()
        if harness.answers["long", 0].token_ids:
            break
    assert harness.steps <= 1000 / 32 + 4


def test_no_request_is_passed_over_more_than_a_bounded_number_of_times() -> None:
    harness = Harness(slots=5_000, chunk=64, max_running=1)
    hot = numbers(0, 40)
    harness.submit("hot", hot, 1)
    harness.run()
    harness.submit("busy", hot + numbers(99, 5), 3)
    harness.submit("cold", numbers(1, 40), 1)
    passed = 0
    for number in range(100):
        harness.submit(f"hot {number}", hot + numbers(number + 2, 5), 3)
        harness.submit(f"hot {number}", hot + numbers(number + 2, 6), 3, index=1)
        harness.step()
        if harness.answers["cold", 0].token_ids:
            break
        passed = sum(bool(a.token_ids) for name, a in harness.answers.items() if name[0].startswith("hot "))
    assert harness.answers["cold", 0].token_ids, "the cold request starves"
    assert 1 < passed <= MAX_BYPASSED + 2


def test_a_crowd_from_one_request_does_not_hold_up_a_later_one() -> None:
    harness = Harness(slots=50_000, chunk=64, max_running=4)
    for index in range(300):
        harness.submit("crowd", numbers(index, 60), 1, index=index)
    harness.step()
    harness.submit("single", numbers(999, 60), 1)
    while not harness.answers["single", 0].token_ids:
        harness.step()
    served = sum(bool(answer.token_ids) for name, answer in harness.answers.items() if name[0] == "crowd")
    assert served <= 60
    harness.run()
    assert all(answer.finish is not None for answer in harness.answers.values())


def test_the_longest_cached_prefix_goes_first_and_equal_ones_by_arrival() -> None:
    harness = Harness(slots=5_000, chunk=64, max_running=1)
    harness.submit("warm", numbers(0, 60), 1)
    harness.run()
    harness.submit("now", numbers(9, 20), 4)
    harness.step()
    harness.submit("cold 1", numbers(1, 40), 1)
    harness.submit("cold 2", numbers(2, 40), 1)
    harness.submit("hit", numbers(0, 60), 1)
    harness.run()
    order = sorted(("cold 1", "cold 2", "hit"), key=lambda name: harness.answers[name, 0].steps)
    assert order == ["hit", "cold 1", "cold 2"]


def test_fcfs_keeps_the_order_of_arrival() -> None:
    harness = Harness(slots=5_000, chunk=64, max_running=1, schedule="fcfs")
    harness.submit("warm", numbers(0, 60), 1)
    harness.run()
    harness.submit("now", numbers(9, 20), 4)
    harness.step()
    harness.submit("cold", numbers(1, 40), 1)
    harness.submit("hit", numbers(0, 60), 1)
    harness.run()
    assert harness.answers["cold", 0].steps < harness.answers["hit", 0].steps


def test_a_higher_priority_goes_first() -> None:
    harness = Harness(max_running=1)
    harness.submit("now", numbers(9, 20), 4)
    harness.step()
    harness.submit("low", numbers(1, 40), 1)
    harness.submit("high", numbers(2, 40), 1, priority=5)
    harness.run()
    assert harness.answers["high", 0].steps < harness.answers["low", 0].steps
