"""The scheduler as a whole, against a worker that notices every wrong slot."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fake_worker import completion, next_logprob
from harness import Harness, numbers

from sapwood.managers.wire.answers import Finish
from sapwood.runtime.step import EntryResult, Failure, StepResult

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


def test_the_scheduler_never_imports_torch() -> None:
    code = (
        "import sys, sapwood.managers.scheduler.process\n"
        "print([m for m in ('torch', 'transformers', 'xgrammar') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
