"""Requests with a grammar: forced tokens, tokens taken back, and waiting for the grammar to be loaded."""

from __future__ import annotations

import pytest
from fake_worker import FakeMatcher, completion, next_token
from harness import Harness

from sapwood.managers.scheduler.grammar_loads import REMEMBERED
from sapwood.managers.wire.grammars import ForgetGrammar, PrepareGrammar

PROMPTS = [[seed, 2, 3, seed + 4] for seed in range(40)]


def rewinds(prompt: list[int], max_tokens: int) -> int:
    """How often the made-up grammar takes tokens back, computed alone."""
    matcher, count = FakeMatcher(prompt, []), 0
    while len(matcher.tokens) < len(prompt) + max_tokens:
        rewind, _, _, complete = matcher.advance(next_token(matcher.tokens, matcher.tries_here()))
        count += rewind > 0
        if complete:
            break
    return count


def test_forced_tokens_are_computed_together_and_counted() -> None:
    harness = Harness(slots=4000, max_running=40)
    for number, prompt in enumerate(PROMPTS):
        harness.submit(str(number), prompt, 40, grammar="g")
    harness.run()
    harness.assert_idle()
    efforts = []
    for number, prompt in enumerate(PROMPTS):
        answer = harness.answers[str(number), 0]
        assert answer.token_ids == completion(prompt, 40, [], constrained=True)
        assert answer.effort is not None
        efforts.append(answer.effort)
    assert sum(effort.forced for effort in efforts) == harness.scheduler.counters.forced_tokens > 100
    tokens = sum(len(answer.token_ids) for answer in harness.answers.values())
    assert sum(effort.forward_passes for effort in efforts) < tokens


def test_what_may_be_taken_back_is_not_shown_and_what_was_shown_stays() -> None:
    prompts = [prompt for prompt in PROMPTS if rewinds(prompt, 40)]
    assert len(prompts) > 5
    harness = Harness(slots=4000, max_running=40)
    for number, prompt in enumerate(prompts):
        harness.submit(str(number), prompt, 40, grammar="g")
    right = [completion(prompt, 40, [], constrained=True) for prompt in prompts]
    while harness.step():
        for number, expected in enumerate(right):
            shown = harness.answers[str(number), 0].token_ids
            assert shown == expected[: len(shown)]
    assert [harness.answers[str(number), 0].token_ids for number in range(len(prompts))] == right


def test_a_retracted_request_goes_on_as_if_nothing_had_happened() -> None:
    harness = Harness(slots=150, max_running=8)
    for number, prompt in enumerate(PROMPTS[:20]):
        harness.submit(str(number), prompt, 140, grammar="g")
    harness.run()
    harness.assert_idle()
    assert harness.scheduler.counters.retracted > 0
    for number, prompt in enumerate(PROMPTS[:20]):
        assert harness.answers[str(number), 0].token_ids == completion(prompt, 140, [], constrained=True)


def test_a_complete_text_ends_with_stop() -> None:
    harness = Harness()
    ended = [prompt for prompt in PROMPTS if len(completion(prompt, 60, [], constrained=True)) < 60]
    harness.submit("a", ended[0], 60, grammar="g")
    harness.run()
    finish = harness.answers["a", 0].finish
    assert finish is not None
    assert (finish.reason, finish.matched) == ("stop", None)


def test_a_request_waits_for_its_grammar_while_others_run_and_it_is_ordered_once() -> None:
    harness = Harness()
    scheduler = harness.scheduler
    harness.submit("a", [1, 2, 3], 5, grammar="slow")
    harness.submit("b", [1, 2, 4], 5, grammar="slow")
    harness.submit("free", [1, 2, 5], 5)
    orders = scheduler.take_grammars()
    assert [order.grammar.key for order in orders if isinstance(order, PrepareGrammar)] == ["slow"]
    harness.run()
    assert harness.answers["free", 0].finish is not None
    assert scheduler.waiting == 2
    harness.loaded("slow")
    harness.run()
    for name, prompt in (("a", [1, 2, 3]), ("b", [1, 2, 4])):
        assert harness.answers[name, 0].token_ids == completion(prompt, 5, [], constrained=True)
    harness.submit("c", [1, 2, 3], 5, grammar="slow")
    assert scheduler.take_grammars() == []
    harness.run()
    assert harness.answers["c", 0].token_ids == harness.answers["a", 0].token_ids
    harness.assert_idle()


def test_a_request_that_waits_for_its_grammar_can_be_aborted() -> None:
    harness = Harness()
    harness.submit("a", [1, 2, 3], 5, grammar="slow")
    harness.submit("b", [1, 2, 3], 5, grammar="slow")
    harness.scheduler.abort("a")
    harness.scheduler.audit()
    harness.run()
    assert harness.answers["a", 0].finish is None
    assert harness.answers["b", 0].finish is not None
    harness.assert_idle()


@pytest.mark.parametrize("again", [False, True])
def test_a_grammar_that_cannot_be_loaded_ends_its_requests_only(again: bool) -> None:
    harness = Harness()
    harness.submit("bad", [1, 2, 3], 5, grammar="broken")
    harness.submit("good", [1, 2, 3], 5, grammar="fine")
    harness.scheduler.take_grammars()
    harness.loaded("broken", "no such thing")
    harness.loaded("fine")
    harness.run()
    finish = harness.answers["bad", 0].finish
    assert finish is not None
    assert finish.reason == "error"
    assert "no such thing" in finish.message
    assert harness.answers["good", 0].token_ids == completion([1, 2, 3], 5, [], constrained=True)
    if again:  # a failure is not remembered as a load
        harness.submit("later", [1, 2, 3], 5, grammar="broken")
        assert len(harness.scheduler.take_grammars()) == 1


def test_waiting_for_a_grammar_counts_against_the_queue() -> None:
    harness = Harness(max_queue=2)
    for name in ("a", "b", "c"):
        harness.submit(name, [1, 2, 3], 5, grammar="slow")
    finish = harness.answers["c", 0].finish
    assert finish is not None
    assert finish.fault == "load"


def test_a_grammar_is_forgotten_once_many_others_came_but_not_while_a_request_has_it() -> None:
    harness = Harness(slots=4000, max_running=1)
    harness.submit("runs", [1, 2, 3], 400, grammar="runs")
    harness.step()
    harness.submit("waits", [1, 2, 3], 5, grammar="waits")
    harness.step()
    orders = []
    for number in range(REMEMBERED + 5):
        harness.submit(str(number), [1, 2, number], 5, grammar=str(number))
        harness.load_grammars()
        harness.scheduler.abort(str(number))
        orders += [order for order in harness.scheduler.take_grammars() if isinstance(order, ForgetGrammar)]
    assert [order.key for order in orders] == [str(number) for number in range(7)]
    harness.submit("again", [1, 2, 0], 5, grammar="0")
    assert len(harness.scheduler.take_grammars()) == 1
    harness.loaded("0")
    harness.run()
    assert harness.answers["waits", 0].token_ids == completion([1, 2, 3], 5, [], constrained=True)
    assert harness.answers["again", 0].token_ids == completion([1, 2, 0], 5, [], constrained=True)
    harness.assert_idle()
