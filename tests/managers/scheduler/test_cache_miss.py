"""Where a prompt left the cached path, and why: what the scheduler says of it."""

from __future__ import annotations

from harness import Harness, numbers

from sapwood.managers.wire.answers import CacheMiss


def miss(harness: Harness, name: str) -> CacheMiss:
    found = harness.answers[name, 0].miss
    assert found is not None
    assert harness.answers[name, 0].cached_tokens >= found.position
    return found


def test_a_prompt_that_is_new_leaves_at_once_and_one_sent_again_only_before_its_last_token() -> None:
    harness = Harness()
    prompt = numbers(1, 100)
    for name in ("first", "again"):
        harness.submit(name, prompt)
        harness.run()
    assert miss(harness, "first") == CacheMiss(0, "never_seen", [])
    assert miss(harness, "again") == CacheMiss(99, "last_token", [])


def test_a_prompt_that_turns_off_the_path_is_told_how_the_path_goes_on() -> None:
    harness = Harness()
    prompt = numbers(1, 100)
    harness.submit("first", prompt)
    harness.run()
    harness.submit("other", [*prompt[:60], 77, *prompt[61:]])
    harness.run()
    assert miss(harness, "other") == CacheMiss(60, "never_seen", prompt[60:68])


def test_a_next_turn_leaves_where_the_completion_before_it_ended() -> None:
    harness = Harness()
    prompt = numbers(1, 50)
    harness.submit("first", prompt, max_tokens=5)
    harness.run()
    said = harness.answers["first", 0].token_ids
    harness.submit("next", [*prompt, *said, *numbers(2, 20)])
    harness.run()
    assert miss(harness, "next") == CacheMiss(50 + 4, "never_seen", []), "the last token sampled is not computed"


def test_what_was_evicted_is_told_from_what_was_never_there() -> None:
    harness = Harness(slots=150)
    prompt = numbers(1, 100)
    harness.submit("first", prompt)
    harness.run()
    harness.submit("crowd", numbers(2, 120))
    harness.run()
    harness.submit("again", prompt)
    harness.run()
    assert miss(harness, "crowd").reason == "never_seen"
    assert miss(harness, "again").reason == "evicted"


def test_flushed_counts_as_evicted() -> None:
    harness = Harness()
    harness.submit("first", numbers(1, 30))
    harness.run()
    harness.scheduler.flush()
    harness.submit("again", numbers(1, 30))
    harness.run()
    assert miss(harness, "again") == CacheMiss(0, "evicted", [])


def test_another_namespace_is_no_reason_but_is_noted_for_the_operator() -> None:
    harness = Harness()
    harness.submit("theirs", numbers(1, 30), namespace="a")
    harness.run()
    harness.submit("ours", numbers(1, 30), namespace="b")
    harness.run()
    found = miss(harness, "ours")
    assert (found.position, found.reason, found.cached_ids) == (0, "never_seen", [])
    assert found.elsewhere >= 29
    harness.submit("again", numbers(1, 30), namespace="b")
    harness.run()
    assert miss(harness, "again") == CacheMiss(29, "last_token", [])


def test_positions_that_are_wanted_have_to_be_computed() -> None:
    harness = Harness()
    prompt = numbers(1, 80)
    harness.submit("first", prompt)
    harness.run()
    harness.submit("scored", prompt, score_start=40, logprobs=0)
    harness.run()
    found = miss(harness, "scored")
    assert (found.reason, found.cached_ids) == ("wanted_positions", [])
    assert found.position == harness.answers["scored", 0].cached_tokens < 41


def test_without_a_cache_that_is_why() -> None:
    harness = Harness(prefix_cache=False)
    for name in ("first", "again"):
        harness.submit(name, numbers(1, 30))
        harness.run()
    assert miss(harness, "again") == CacheMiss(0, "cache_off", [])


def test_what_another_request_is_computing_is_in_flight_not_missing() -> None:
    harness = Harness(chunk=32, slots=2000)
    prompt = numbers(1, 400)
    harness.submit("first", prompt)
    harness.step()
    harness.submit("second", [*prompt, 1, 2, 3])
    harness.run()
    found = miss(harness, "second")
    assert found.reason == "being_computed"
    assert 0 < found.position < 400
    assert harness.answers["second", 0].cached_tokens > found.position, "it goes on from what others compute meanwhile"


def test_what_another_request_is_generating_is_in_flight_too() -> None:
    harness = Harness()
    prompt = numbers(1, 20)
    harness.submit("first", prompt, max_tokens=40)
    while len(harness.answers["first", 0].token_ids) < 10:
        harness.step()
    harness.submit("second", [*prompt, *harness.answers["first", 0].token_ids])
    harness.run()
    assert miss(harness, "second") == CacheMiss(19, "being_computed", [])


def test_of_several_samples_the_first_one_says_it_and_a_retraction_changes_nothing() -> None:
    harness = Harness(slots=120, max_running=4)
    for index in range(3):
        harness.submit("many", numbers(1, 40), max_tokens=25, index=index, seed=index)
    harness.step()
    harness.submit("other", numbers(2, 40), max_tokens=40, priority=1)
    harness.run()
    assert harness.scheduler.counters.retracted, "the test's point"
    assert miss(harness, "many") == CacheMiss(0, "never_seen", [])
    assert harness.answers["many", 1].miss is harness.answers["many", 2].miss is None
    harness.assert_idle()
