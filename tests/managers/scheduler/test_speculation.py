"""Speculation: where guesses come from, when they are made, and that they save steps without changing an answer."""

from __future__ import annotations

import numpy as np
import pytest
from fake_worker import completion
from harness import Harness

from sapwood.managers.scheduler.request import Request
from sapwood.managers.scheduler.speculation import NGRAM, Speculator, StepCost
from sapwood.managers.scheduler.speculation_state import FIRST_LENGTH, FIRST_RATE, MAX_LENGTH, PAUSE, SpeculationState
from sapwood.managers.wire.requests import TokenizedRequest
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling

PROMPT = list(range(10, 40))


def request_of(prompt: list[int], produced: list[int], namespace: str = "", max_tokens: int = 100) -> Request:
    """A request that has a completion already."""
    sampling = Sampling(max_tokens=max_tokens, seed=0)
    request = Request(TokenizedRequest("r", 0, pack_ids(prompt), sampling, [], namespace, 0), 0)
    for token in produced:
        request.append(token)
    return request


def cache_with(tokens: list[int], namespace: str = "") -> PrefixCache:
    cache = PrefixCache(1000)
    ids = np.array(tokens, np.int32)
    lease = cache.open(namespace, ids, len(tokens))
    cache.grow(lease, len(tokens))
    cache.close(lease, ids)
    return cache


# --- where guesses come from ------------------------------------------------------------------------------------------


def test_the_tree_continues_a_sequence_that_it_holds_as_a_whole() -> None:
    speculator = Speculator(cache_with([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert speculator.propose(request_of([1, 2], [3]), 1).tolist() == [4, 5, 6, 7]
    assert speculator.propose(request_of([1, 2], [4]), 1).tolist() == []


def predicting(prediction: list[int], produced: list[int], prompt: list[int] = PROMPT) -> Request:
    request = request_of(prompt, produced)
    request.prediction = np.array(prediction, np.int32)
    return request


def test_what_a_request_predicts_of_its_completion_comes_first() -> None:
    speculator = Speculator(cache_with([*PROMPT, 1, 70, 71, 72]))
    assert speculator.propose(request_of(PROMPT, [1]), 1).tolist() == [70, 71, 72]
    prediction = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert speculator.propose(predicting(prediction, [1]), 1).tolist() == [2, 3, 4, 5]
    assert speculator.propose(predicting(prediction, [1, 2, 3, 4, 5]), 1).tolist() == [6, 7, 8, 9]
    assert speculator.propose(predicting(prediction, [99, 98, 97, 3, 4, 5, 6]), 1).tolist() == [7, 8, 9]
    assert speculator.propose(predicting(prediction, [1, 2, 4]), 1).tolist() == [], "it went another way"
    assert speculator.propose(predicting(prediction, [6, 7, 8, 9]), 1).tolist() == [], "it is at its end"
    assert speculator.propose(predicting([], [1]), 1).tolist() == [70, 71, 72]


def test_of_several_places_in_a_prediction_the_nearest_counts() -> None:
    prediction = [1, 2, 3, 4, 50, 60, 1, 2, 3, 4, 51, 61]
    speculator = Speculator(PrefixCache(10))
    assert speculator.propose(predicting(prediction, [1, 2, 3, 4]), 1).tolist() == [50, 60, 1, 2]
    assert speculator.propose(predicting(prediction, [1, 2, 3, 4, 50, 60, 1, 2, 3, 4]), 1).tolist() == [51, 61]


@pytest.mark.parametrize("right", [0, 1, 6, 12])
def test_a_prediction_saves_steps_and_never_changes_a_completion(right: int) -> None:
    plain = Harness()
    plain.submit("a", PROMPT, 12)
    plain.run()
    answer = completion(PROMPT, 12, [])
    assert plain.answers["a", 0].token_ids == answer
    predicted = Harness()
    predicted.submit("a", PROMPT, 12, prediction=[*answer[:right], *([7] * (12 - right))])
    predicted.run()
    assert predicted.answers["a", 0].token_ids == answer
    assert predicted.steps <= plain.steps
    assert (predicted.steps < plain.steps) == (right > 1)


def test_the_tree_of_another_namespace_is_never_looked_into() -> None:
    speculator = Speculator(cache_with([1, 2, 3, 4, 5, 6, 7, 8, 9], namespace="salt"))
    assert speculator.propose(request_of([1, 2], [3]), 1).tolist() == []
    assert speculator.propose(request_of([1, 2], [3], namespace="salt"), 1).tolist() == [4, 5, 6, 7]


def test_the_requests_own_text_is_the_second_source_the_latest_occurrence_first() -> None:
    speculator = Speculator(PrefixCache(10))
    ngram = [1, 2, 3, 4]
    assert len(ngram) == NGRAM
    request = request_of([*ngram, 50, 51, *ngram, 60, 61, 62], [7, *ngram])
    assert speculator.propose(request, 1).tolist() == [60, 61, 62, 7]
    assert speculator.propose(request_of([*ngram, 50, 51], [2, 3, 4]), 1).tolist() == []
    assert speculator.propose(request_of([9, *ngram, 5], [*ngram]), 1).tolist() == [5, 1, 2, 3]
    assert speculator.propose(request_of([9, 9, 9, 9], [9]), 1).tolist() == [9, 9, 9, 9]


def test_completions_that_ended_are_the_third_source_and_stay_in_their_namespace() -> None:
    speculator = Speculator(PrefixCache(10))
    speculator.remember(request_of([9, 9], [1, 2, 3, 4, 5, 6, 7]))
    assert speculator.propose(request_of([8], [1, 2, 3, 4]), 1).tolist() == [5, 6, 7]
    assert speculator.propose(request_of([8], [1, 2, 3, 4], namespace="salt"), 1).tolist() == []
    speculator.forget()
    assert speculator.propose(request_of([8], [1, 2, 3, 4]), 1).tolist() == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.managers.scheduler.speculation.REMEMBERED", 10)
    speculator = Speculator(PrefixCache(10))
    speculator.remember(request_of([9], list(range(100, 140))))
    assert speculator.propose(request_of([8], [100, 101, 102, 103]), 1).tolist() == []
    assert speculator.propose(request_of([8], [134, 135, 136, 137]), 1).tolist() == [138, 139]


def test_no_guess_goes_beyond_the_end_of_the_completion() -> None:
    speculator = Speculator(cache_with(list(range(1, 30))))
    assert speculator.propose(request_of([1, 2], [3], max_tokens=4), 1).tolist() == [4, 5]
    assert speculator.propose(request_of([1, 2], [3], max_tokens=2), 1).tolist() == []


# --- when they are made -----------------------------------------------------------------------------------------------


def test_the_length_of_a_guess_follows_its_success() -> None:
    state = SpeculationState()
    state.learn(FIRST_LENGTH, FIRST_LENGTH)
    assert state.length == 2 * FIRST_LENGTH
    for _ in range(5):
        state.learn(state.length, state.length)
    assert state.length == MAX_LENGTH
    state.learn(MAX_LENGTH, 0)
    assert state.length == MAX_LENGTH // 2


def test_the_cost_of_a_token_decides_what_pays() -> None:
    cost = StepCost()
    for tokens in (1, 4, 1, 8, 1, 16):
        cost.observe(tokens, 0.006 + 0.002 * tokens)
    assert cost.least_acceptance(1) == pytest.approx(0.002 / 0.008, abs=0.01)
    assert cost.least_acceptance(16) == pytest.approx(0.002 / (0.002 + 0.006 / 16), abs=0.01)


def test_before_there_are_figures_a_crowd_does_not_guess_readily() -> None:
    cost = StepCost()
    assert cost.least_acceptance(1) < cost.least_acceptance(4) < FIRST_RATE < cost.least_acceptance(100)
    for _ in range(50):
        cost.observe(3, 0.01)  # all alike: no slope in them
    assert cost.least_acceptance(1) == StepCost().least_acceptance(1)


def test_guesses_that_do_not_come_true_stop_for_a_while_and_longer_each_time() -> None:
    speculator = Speculator(cache_with(list(range(1, 30))))
    request = request_of([1, 2], [3], max_tokens=10_000)
    request.speculation.learn(4, 0)
    request.speculation.learn(4, 0)
    assert speculator.propose(request, 1).tolist() == []
    assert request.speculation.resume_at == 1 + PAUSE
    for token in range(4, 4 + PAUSE):
        request.append(token if token < 30 else 0)
    request.speculation.learn(4, 0)
    request.speculation.learn(4, 0)
    speculator.propose(request, 1)
    assert request.speculation.resume_at == 1 + 3 * PAUSE


# --- what they do -----------------------------------------------------------------------------------------------------


def test_the_same_request_again_takes_a_fraction_of_the_steps_and_says_the_same() -> None:
    harness = Harness()
    harness.submit("first", PROMPT, 60, logprobs=0)
    harness.run()
    before = harness.steps
    harness.submit("again", PROMPT, 60, logprobs=0)
    harness.run()
    first, again = harness.answers["first", 0], harness.answers["again", 0]
    assert again.token_ids == first.token_ids == completion(PROMPT, 60, [])
    assert again.logprobs == first.logprobs
    assert harness.steps - before < before / 4
    assert again.effort is not None
    assert again.effort.forward_passes < 15
    assert again.effort.accepted == again.effort.speculated > 40
    assert harness.scheduler.counters.accepted_tokens == again.effort.accepted
    harness.assert_idle()


def test_without_speculation_every_token_is_a_step() -> None:
    harness = Harness(speculation=False)
    for name in ("first", "again"):
        harness.submit(name, PROMPT, 20)
        harness.run()
        effort = harness.answers[name, 0].effort
        assert effort is not None
        assert (effort.forward_passes, effort.speculated) == (19, 0)


def test_a_stop_inside_a_guess_that_came_true_ends_the_completion_there() -> None:
    harness = Harness()
    harness.submit("first", PROMPT, 60)
    harness.run()
    whole = harness.answers["first", 0].token_ids
    stop = next(token for place, token in enumerate(whole) if place > 20 and token not in whole[:place])
    harness.submit("again", PROMPT, 60, stop_ids=[stop])
    harness.run()
    assert harness.answers["again", 0].token_ids == whole[: whole.index(stop) + 1]
    harness.submit("third", PROMPT + whole[: whole.index(stop) + 1], 5)  # reads what the second one left
    harness.run()
    assert harness.answers["third", 0].token_ids == completion(PROMPT + whole[: whole.index(stop) + 1], 5, [])
    harness.assert_idle()


def test_where_slots_are_scarce_nothing_is_guessed() -> None:
    harness = Harness(slots=len(PROMPT) + 60)
    harness.submit("first", PROMPT, 60)
    harness.run()
    harness.submit("again", PROMPT, 60)
    harness.run()
    assert harness.answers["again", 0].token_ids == completion(PROMPT, 60, [])
    harness.assert_idle()


def test_a_stream_beside_one_that_guesses_gets_its_token_in_every_step() -> None:
    harness = Harness()
    harness.submit("first", PROMPT, 60)
    harness.run()
    harness.submit("again", PROMPT, 60)
    harness.submit("other", [3, 4, 5], 12)
    harness.run()
    steps = harness.answers["other", 0].steps
    assert steps == list(range(steps[0], steps[0] + 12))


def test_what_a_wrong_guess_computed_is_never_kept() -> None:
    """The second one stops with a token where the first one's, which was guessed and computed, is another."""
    tried = 0
    for first in range(10, 60):
        prompt = [first, *PROMPT]
        one, other = (completion(prompt, 60, [], seed=seed) for seed in (0, 1))
        fork = next((place for place, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), 0)
        if fork < 6 or other[fork] in other[:fork]:
            continue
        tried += 1
        harness = Harness()
        harness.submit("one", prompt, 60)
        harness.run()
        harness.submit("other", prompt, 60, stop_ids=[other[fork]], seed=1)
        harness.run()
        assert harness.answers["other", 0].token_ids == other[: fork + 1]
        harness.submit("third", prompt + other[: fork + 2], 5, seed=1)
        harness.run()
        assert harness.answers["third", 0].token_ids == other[fork + 2 : fork + 7]
    assert tried > 3
