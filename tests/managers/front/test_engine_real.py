"""`Engine` with everything real: the four processes and SmolLM2. One engine for all tests here, killed by the last."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood import Engine
from sapwood.managers.wire.answers import CacheReport
from sapwood.managers.wire.errors import EngineDead, RequestFailed

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(
        smollm2_path, kv_tokens=1024, max_context=512, chunk_tokens=64, audit=True, poison_freed=True
    ) as engine:
        yield engine


def settled(engine: Engine) -> bool:
    """Whether nothing runs any more and no slot is held, soon."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stats = engine.stats()
        if stats.running == stats.waiting == stats.private == stats.pinned == 0:
            return stats.free + stats.evictable == stats.total
        time.sleep(0.05)
    return False


def test_joined_chunks_are_the_whole_text(engine: Engine) -> None:
    whole = engine.generate(PROMPT, max_tokens=12, temperature=0)
    chunks = list(engine.generate_stream(PROMPT, max_tokens=12, temperature=0))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert "Paris" in whole.text
    assert chunks[-1].cached_tokens == chunks[-1].prompt_tokens - 1 == 4


def test_a_seed_repeats_and_samples_differ(engine: Engine) -> None:
    one, two = (engine.generate(PROMPT, max_tokens=8, seed=5, n=3, temperature=1.5) for _ in range(2))
    assert [each.token_ids for each in one.completions] == [each.token_ids for each in two.completions]
    assert len({tuple(each.token_ids) for each in one.completions}) == 3


def test_a_conversation_is_told_where_it_left_the_cached_path(engine: Engine) -> None:
    def ask(messages: list[dict[str, str]], **fields: Any) -> CacheReport:
        answer = engine.generate(messages=messages, max_tokens=6, temperature=0, **fields)
        assert answer.cache is not None
        said.append(answer.text)
        return answer.cache

    said: list[str] = []
    system = {"role": "system", "content": "Today is Monday. You answer everything in a kind way."}
    first = [system, {"role": "user", "content": "Say hello."}]
    assert ask(first).reason == "never_seen"
    again = ask(first, explain_cache=True)
    assert (again.reason, again.message) == ("last_token", None)
    turn = [*first, {"role": "assistant", "content": said[0]}, {"role": "user", "content": "Once more."}]
    grown = ask(turn, explain_cache=True)
    assert (grown.reason, grown.cached_text) == ("never_seen", "")
    assert "Once more" in grown.prompt_text
    assert grown.position > again.position
    changed = ask([{**system, "content": system["content"].replace("Mon", "Fri")}, *turn[1:]], explain_cache=True)
    assert (changed.message, changed.role, changed.reason) == (0, "system", "never_seen")
    assert changed.cached_text.startswith(" Monday. You")
    assert changed.prompt_text.startswith(" Friday. You")
    other = ask([*turn[:2], {"role": "assistant", "content": "Hm, no."}, turn[3]], explain_cache=True)
    assert (other.message, other.role, other.reason) == (2, "assistant", "answer_changed")
    salted = ask(turn, cache_salt="another", explain_cache=True)
    assert (salted.position, salted.reason, salted.cached_text) == (0, "never_seen", "")
    engine.flush_cache()
    assert ask(turn).reason == "evicted"


def test_scores_equal_the_log_probabilities_of_generation_and_of_the_prompt(engine: Engine) -> None:
    answer = engine.generate(PROMPT, max_tokens=1, temperature=0, logprobs=2)
    paris, london = engine.score(PROMPT, [answer.text, " London"], logprobs=1)
    assert answer.logprobs is not None
    assert paris.logprob == pytest.approx(answer.logprobs[0].logprob, abs=1e-4)
    assert paris.logprob > london.logprob
    assert paris.tokens[0].top[0].text == answer.text
    echoed = engine.generate(PROMPT + " London", max_tokens=0, prompt_logprobs=0)
    assert echoed.prompt_logprobs is not None
    assert echoed.prompt_logprobs[0].logprob is None
    assert echoed.prompt_logprobs[-1].logprob == pytest.approx(london.logprob, abs=1e-4)
    assert len(echoed.prompt_logprobs) == echoed.prompt_tokens


def test_a_conversation_ends_its_turn_without_showing_the_end(engine: Engine) -> None:
    answer = engine.generate(messages=[{"role": "user", "content": "Say hi."}], temperature=0, max_tokens=64)
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text
    assert answer.completions[0].finish.matched == answer.token_ids[-1] == 2


def test_what_is_left_early_gives_everything_back(engine: Engine) -> None:
    for _ in engine.generate_stream(PROMPT, max_tokens=400, ignore_eos=True, n=2):
        break
    stopped = engine.generate(PROMPT, max_tokens=50, temperature=0, stop=["Paris"], ignore_eos=True)
    assert stopped.text == " "
    assert settled(engine)
    assert engine.flush_cache() > 0
    assert engine.stats().evictable == 0


@pytest.mark.alone
def test_requests_end_with_an_error_when_the_worker_is_killed(engine: Engine) -> None:
    stream = engine.generate_stream(PROMPT, max_tokens=400, ignore_eos=True)
    next(stream)
    os.kill(engine._front.front.pids["worker"], signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(EngineDead, match="worker") as caught:
        list(stream)
    assert not isinstance(caught.value, RequestFailed)
    assert time.monotonic() - killed < 1
    with pytest.raises(EngineDead):
        engine.generate(PROMPT)
