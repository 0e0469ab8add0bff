"""The scheduler as a whole, against a worker that notices every wrong slot."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from typing import Any

import pytest
from fake_worker import completion, next_logprob
from harness import Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.managers.scheduler.waiting_queue import MAX_BYPASSED
from sapwood.managers.wire.answers import Finish
from sapwood.runtime.step import EntryResult, Failure, StepResult


def numbers(seed: int, count: int) -> list[int]:
    return [random.Random(f"{seed}/{place}").randrange(50) for place in range(count)]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_request_gets_its_tokens_and_ends_with_length() -> None:
    harness = Harness()
    harness.submit("a", numbers(1, 100), 10)
    harness.run()
    answer = harness.answers["a", 0]
    assert answer.token_ids == completion(numbers(1, 100), 10, [])
    assert answer.finish is not None
    assert answer.finish.reason == "length"
    harness.assert_idle()


def test_a_stop_id_ends_the_completion_and_nothing_follows_it() -> None:
    harness = Harness()
    whole = completion(numbers(1, 20), 30, [])
    stop = whole[12]
    harness.submit("a", numbers(1, 20), 30, stop_ids=[stop])
    harness.run()
    answer = harness.answers["a", 0]
    assert answer.token_ids == whole[: whole.index(stop) + 1]
    assert answer.finish is not None
    assert (answer.finish.reason, answer.finish.matched) == ("stop", stop)
    harness.assert_idle()


def test_max_tokens_zero_computes_and_caches_the_prompt_only() -> None:
    harness = Harness()
    harness.submit("warm", numbers(1, 100), 0)
    harness.run()
    assert harness.answers["warm", 0].token_ids == []
    assert harness.answers["warm", 0].finish is not None
    harness.submit("a", numbers(1, 100), 3)
    harness.run()
    assert harness.answers["a", 0].cached_tokens == 99
    assert harness.answers["a", 0].token_ids == completion(numbers(1, 100), 3, [])


@pytest.mark.parametrize("length", [1, 2, 16, 64, 65])
def test_a_prompt_sent_again_hits_all_but_its_last_token(length: int) -> None:
    """R26: and gives the same tokens, a third time too, and twice in one batch."""
    harness = Harness()
    for name in ("cold", "warm", "third"):
        harness.submit(name, numbers(1, length), 1)
        harness.run()
    harness.submit("twin", numbers(1, length), 1)
    harness.submit("twin", numbers(1, length), 1, index=1)
    harness.run()
    right = completion(numbers(1, length), 1, [])
    assert all(answer.token_ids == right for answer in harness.answers.values())
    hits = [answer.cached_tokens for answer in harness.answers.values()]
    assert hits == [0, length - 1, length - 1, length - 1, length - 1]


def test_scores_cover_the_wanted_span_cold_and_warm_and_across_chunks() -> None:
    harness = Harness(chunk=16)
    prompt = numbers(1, 100)
    for name in ("cold", "warm"):
        harness.submit(name, prompt, 0, score_start=40)
        harness.run()
        answer = harness.answers[name, 0]
        assert answer.scored == [next_logprob(prompt[: position + 1]) for position in range(40, 100)]
    assert harness.answers["warm", 0].cached_tokens == 39
    harness.assert_idle()


def test_log_probabilities_come_with_their_own_token() -> None:
    harness = Harness()
    harness.submit("a", numbers(1, 10), 8, logprobs=0)
    harness.run()
    answer, tokens = harness.answers["a", 0], numbers(1, 10)
    for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
        tokens.append(token)
        assert logprob == next_logprob(tokens)


# --- sharing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [64, 256, 2048])
def test_requests_that_arrive_together_compute_their_common_prefix_once(chunk: int) -> None:
    harness = Harness(slots=20_000, chunk=chunk, max_running=32)
    prefix, count = numbers(0, 1000), 20
    for number in range(count):
        harness.submit(f"{number}", prefix + numbers(number + 1, 24), 1)
    harness.run()
    distinct = 1000 + 24 * count
    assert harness.worker.computed <= distinct * 1.02
    for number in range(count):
        assert harness.answers[f"{number}", 0].token_ids == completion(prefix + numbers(number + 1, 24), 1, [])
    assert sum(answer.cached_tokens for answer in harness.answers.values()) >= 1000 * (count - 1) * 0.98


def test_decodes_that_share_a_prefix_are_grouped_for_attention() -> None:
    harness = Harness(slots=20_000, chunk=512, max_running=32)
    for number in range(16):
        harness.submit(f"{number}", numbers(0, 500) + numbers(number + 1, 10), 20)
    harness.submit("other", numbers(99, 300), 20)
    harness.run()
    assert harness.worker.shared_reads >= 0.9 * 18 * 15 * 500


def test_without_a_common_prefix_there_are_no_groups() -> None:
    harness = Harness(slots=20_000, chunk=512, max_running=32)
    for number in range(4):
        harness.submit(f"{number}", numbers(number, 300), 10)
    harness.run()
    assert harness.worker.shared_reads == 0


def test_a_tree_of_forks_computes_every_branch_once() -> None:
    harness = Harness(slots=20_000, chunk=128, max_running=64)
    leaves = {}
    for a in range(4):
        for b in range(4):
            for c in range(4):
                prompt = numbers(0, 300) + numbers(10 + a, 50) + numbers(100 + 4 * a + b, 50)
                leaves[f"{a}{b}{c}"] = prompt + numbers(1000 + 16 * a + 4 * b + c, 20)
    for name, prompt in leaves.items():
        harness.submit(name, prompt, 1)
    harness.run()
    distinct = 300 + 4 * 50 + 16 * 50 + 64 * 20
    assert harness.worker.computed <= distinct * 1.05


def test_a_prefill_that_is_overtaken_within_a_step_computes_nothing_twice() -> None:
    """The long one gets half the step, the short one overtakes it on the same prefix and leaves some of the step."""
    harness = Harness(chunk=64)
    harness.submit("long", numbers(1, 200), 1)
    harness.submit("short", numbers(1, 110), 1)
    harness.submit("bystander", numbers(2, 4), 1)
    harness.run()
    assert harness.worker.computed == 200 + 1 + 4
    assert harness.answers["long", 0].token_ids == completion(numbers(1, 200), 1, [])


def test_the_samples_of_one_prompt_share_it() -> None:
    harness = Harness(chunk=64)
    for index in range(5):
        harness.submit("a", numbers(1, 200), 6, index=index)
    harness.run()
    assert harness.worker.computed <= 200 + 5 + 5 * 6
    assert {tuple(answer.token_ids) for answer in harness.answers.values()} == {
        tuple(completion(numbers(1, 200), 6, []))
    }


def test_a_namespace_never_sees_what_another_computed() -> None:
    """R39."""
    harness = Harness()
    cached = []
    for name, namespace in [("1", "T1"), ("2", "T2"), ("3", "T1")]:
        harness.submit(name, numbers(1, 500), 1, namespace=namespace)
        harness.run()
        cached.append(harness.answers[name, 0].cached_tokens)
    assert cached == [0, 0, 499]


def test_two_namespaces_at_once_do_not_share_either() -> None:
    harness = Harness()
    harness.submit("1", numbers(1, 200), 1, namespace="T1")
    harness.submit("2", numbers(1, 200), 1, namespace="T2")
    harness.run()
    assert [answer.cached_tokens for answer in harness.answers.values()] == [0, 0]


def test_cached_tokens_never_count_a_requests_own_chunks() -> None:
    harness = Harness(chunk=16)
    harness.submit("a", numbers(1, 200), 4)
    harness.run()
    assert harness.answers["a", 0].cached_tokens == 0


def test_the_completion_is_cached_for_the_next_turn() -> None:
    harness = Harness()
    harness.submit("turn 1", numbers(1, 50), 20)
    harness.run()
    history = numbers(1, 50) + harness.answers["turn 1", 0].token_ids
    harness.submit("turn 2", history + numbers(2, 10), 5)
    harness.run()
    assert harness.answers["turn 2", 0].cached_tokens == len(history) - 1  # the last token was never fed


def test_equal_requests_decoding_side_by_side_keep_their_own_slots_until_the_end() -> None:
    """R25: the duplicates are freed only when nothing names them any more."""
    harness = Harness(slots=700, chunk=512)
    harness.submit("a", numbers(1, 200), 60)
    harness.submit("b", numbers(1, 200), 60)
    for number in range(8):
        harness.step()
        harness.submit(f"other {number}", numbers(number + 10, 60), 5)
    harness.run()
    assert harness.answers["a", 0].token_ids == completion(numbers(1, 200), 60, [])
    assert harness.answers["b", 0].token_ids == completion(numbers(1, 200), 60, [])


def test_without_the_prefix_cache_nothing_is_shared_and_answers_are_the_same() -> None:
    harness = Harness(prefix_cache=False, slots=300)
    for name in "abc":
        harness.submit(name, numbers(1, 60), 30)
    harness.run()
    assert all(answer.token_ids == completion(numbers(1, 60), 30, []) for answer in harness.answers.values())
    assert all(answer.cached_tokens == 0 for answer in harness.answers.values())
    assert harness.cache.free == harness.cache.total


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


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_an_abort_frees_everything_wherever_the_request_is() -> None:
    """R29: queued, in prefill, in decode, with steps in flight; the same request sent again is answered right."""
    for steps in range(12):
        harness = Harness(chunk=32, max_running=1)
        harness.submit("other", numbers(5, 20), 3)
        harness.submit("a", numbers(1, 100), 50)
        for _ in range(steps):
            harness.step()
        harness.scheduler.abort("a")
        harness.scheduler.audit()
        harness.run()
        harness.assert_idle()
        produced = len(harness.answers["a", 0].token_ids)
        assert produced < 50
        harness.submit("again", numbers(1, 100), 10)
        harness.run()
        assert harness.answers["again", 0].token_ids == completion(numbers(1, 100), 10, [])


def test_a_stop_string_ends_one_sample_and_leaves_the_others() -> None:
    harness = Harness()
    for index in range(3):
        harness.submit("a", numbers(1, 30), 40, index=index)
    for _ in range(6):
        harness.step()
    harness.scheduler.stop("a", 1)
    harness.run()
    assert len(harness.answers["a", 1].token_ids) < 10
    assert harness.answers["a", 0].token_ids == harness.answers["a", 2].token_ids == completion(numbers(1, 30), 40, [])
    harness.assert_idle()


def test_an_answer_that_is_not_finite_ends_its_request_only() -> None:
    harness = Harness()
    harness.submit("bad", numbers(1, 30), 10)
    harness.submit("good", numbers(2, 30), 10)
    plan = harness.scheduler.plan()
    assert plan is not None
    result = harness.worker.execute(plan)
    broken = StepResult(plan.step, [EntryResult(failure=Failure("not finite")), result.entries[1]])
    harness._take(harness.scheduler.apply(broken))
    harness.run()
    finish = harness.answers["bad", 0].finish
    assert finish is not None
    assert finish.reason == "error"
    assert harness.answers["good", 0].token_ids == completion(numbers(2, 30), 10, [])
    harness.assert_idle()


def test_a_constraint_that_fails_in_its_engine_ends_its_request_only_with_the_servers_fault() -> None:
    harness = Harness()
    harness.submit("bad", numbers(1, 30), 10, grammar="g")
    harness.submit("good", numbers(2, 30), 10, grammar="g")
    harness.load_grammars()
    plan = harness.scheduler.plan()
    assert plan is not None
    result = harness.worker.execute(plan)
    failed = EntryResult(failure=Failure("matcher", "Panic: wormwood"))
    harness._take(harness.scheduler.apply(StepResult(plan.step, [failed, result.entries[1]])))
    harness.run()
    text = "the constraint failed in its engine, llguidance: Panic: wormwood"
    assert harness.answers["bad", 0].finish == Finish("error", message=text, fault="server")
    assert harness.answers["good", 0].token_ids == completion(numbers(2, 30), 10, [], constrained=True)
    harness.assert_idle()


# --- everything at once -----------------------------------------------------------------------------------------------


ARRIVALS = given(
    seed=st.integers(0, 2**32),
    slots=st.integers(60, 300),
    chunk=st.sampled_from([1, 3, 8, 32, 200]),
    max_running=st.integers(1, 6),
    schedule=st.sampled_from(["lpm", "fcfs"]),
    prefix_cache=st.booleans(),
    speculation=st.booleans(),
)


@settings(max_examples=50, deadline=None)
@ARRIVALS
def test_whatever_arrives_is_answered_right_or_aborted_and_the_books_balance(**arrivals: Any) -> None:
    answer_whatever_arrives(**arrivals)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@ARRIVALS
def test_whatever_arrives_is_answered_in_many_more_cases(**arrivals: Any) -> None:
    answer_whatever_arrives(**arrivals)


def answer_whatever_arrives(
    seed: int, slots: int, chunk: int, max_running: int, schedule: str, prefix_cache: bool, speculation: bool
) -> None:
    """Random trees of prompts, tiny pools, aborts, stops, scores, grammars and priorities, audited after every step."""
    rng = random.Random(seed)
    harness = Harness(
        slots=slots,
        chunk=chunk,
        max_running=max_running,
        schedule=schedule,
        prefix_cache=prefix_cache,
        speculation=speculation,
    )
    prompts: list[list[int]] = [[1]]
    wanted: dict[str, tuple[list[int], int, list[int], int | None, bool, int]] = {}
    gone: set[str] = set()
    for number in range(rng.randrange(1, 25)):
        base = rng.choice(prompts)
        prompt = (base[: rng.randrange(1, len(base) + 1)] + numbers(rng.randrange(6), rng.randrange(30)))[: slots - 1]
        if rng.random() < 0.2:
            prompt = base[: slots - 1]  # once more: what was said before is a guess that comes true
        prompts += [prompt, prompt + completion(prompt, 20, []) + [3]]
        max_tokens = rng.randrange(min(40, slots - len(prompt)) + 1)
        score_start = rng.randrange(1, len(prompt)) if len(prompt) > 1 and rng.random() < 0.2 else None
        stop_ids = [rng.randrange(50)] if rng.random() < 0.3 else []
        namespace = rng.choice(["", "", "tenant"])
        name = f"{number}"
        constrained, sampling_seed = rng.random() < 0.3, rng.choice([0, 0, 1])
        wanted[name] = (prompt, max_tokens, stop_ids, score_start, constrained, sampling_seed)
        harness.submit(
            name,
            prompt,
            max_tokens,
            stop_ids=stop_ids,
            namespace=namespace,
            priority=rng.choice([0, 0, 0, 1]),
            score_start=score_start,
            logprobs=0,
            grammar=rng.choice(["a", "b"]) if constrained else None,
            seed=sampling_seed,
        )
        for _ in range(rng.choice([0, 1, 2, 3, 100])):
            harness.step()
        if rng.random() < 0.15:
            gone.add(victim := rng.choice(list(wanted)))
            harness.scheduler.abort(victim)
            harness.scheduler.audit()
        if rng.random() < 0.05:
            harness.cache.flush()
    harness.run()
    harness.assert_idle()
    for name, (prompt, max_tokens, stop_ids, score_start, constrained, sampling_seed) in wanted.items():
        answer, right = (
            harness.answers[name, 0],
            completion(prompt, max_tokens, stop_ids, constrained=constrained, seed=sampling_seed),
        )
        ends = range(len(prompt) + 1, len(prompt) + len(answer.token_ids) + 1)
        assert answer.logprobs == [next_logprob((prompt + right)[:end]) for end in ends]
        if name in gone and answer.finish is None:
            assert answer.token_ids == right[: len(answer.token_ids)]
            continue
        assert answer.token_ids == right
        assert answer.finish is not None
        assert answer.effort is not None
        assert answer.effort.accepted <= answer.effort.speculated
        assert speculation or not answer.effort.speculated
        if score_start is not None:
            assert answer.scored == [next_logprob(prompt[: place + 1]) for place in range(score_start, len(prompt))]


def test_the_scheduler_never_imports_torch() -> None:
    code = (
        "import sys, sapwood.managers.scheduler.process\n"
        "print([m for m in ('torch', 'transformers', 'xgrammar') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
