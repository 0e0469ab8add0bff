"""Everything at once: whatever arrives is answered right, and the books balance after every step."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fake_worker import completion, next_logprob
from harness import Harness, numbers
from hypothesis import given, settings
from hypothesis import strategies as st

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
