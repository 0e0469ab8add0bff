"""What programs share is computed once, on a real server: forks, turns of a chat, batches, choices."""

from __future__ import annotations

import itertools
import math

import sapwood as sgl
from sapwood import ProgramState, RuntimeEndpoint
from sapwood.lang.running.loop import loop_thread


def long_text(title: str, sentences: int) -> str:
    """Some text that no other test has computed, of about ten tokens a sentence."""
    return f"{title}. " + " ".join(f"Here is sentence {i} of it, which goes on." for i in range(sentences))


def token_count(endpoint: RuntimeEndpoint, text: str) -> int:
    answer = loop_thread().call(endpoint._send({"prompt": text, "max_tokens": 0, "cache_salt": "count"}, None))
    return answer[1].prompt_tokens


def test_a_fork_computes_its_prefix_once_without_a_warm_up(endpoint: RuntimeEndpoint) -> None:
    prefix = long_text("A fork of eight", 76)

    @sgl.function
    def program(s: ProgramState) -> None:
        s += prefix
        forks = s.fork(8)
        forks += lambda i: f"\nBranch number {i} says" + sgl.gen("x", max_tokens=4)
        forks.join()

    length = token_count(endpoint, prefix)
    assert 900 < length < 1000
    report = program.run(backend=endpoint, temperature=0).report()
    tails = [step.prompt_tokens - length for step in report.steps]
    distinct = length + sum(tails)
    assert len(report.steps) == 8
    assert report.computed_tokens <= 1.02 * distinct
    assert report.prompt_tokens > 6 * distinct


@sgl.function
def ten_turns(s: ProgramState, stop: list[str]) -> None:
    s += sgl.system(f"You are the keeper of the ten turns, and stop at {stop}.")
    for i in range(10):
        s += sgl.user(f"Tell me the news number {i}, please.")
        s += sgl.assistant(sgl.gen(f"a{i}", max_tokens=10 + 2 * i, temperature=0.7, seed=i, stop=stop))


def computed_again(state: ProgramState) -> list[int]:
    """For each turn after the first, how many tokens of the turn before it were not cached."""
    metas = [state.meta(f"a{i}") for i in range(10)]
    return [
        before["prompt_tokens"] + before["completion_tokens"] - after["cached_tokens"]
        for before, after in itertools.pairwise(metas)
    ]


def test_each_turn_of_a_chat_computes_only_what_is_new(endpoint: RuntimeEndpoint) -> None:
    state = ten_turns.run([], backend=endpoint)
    assert {state.meta(f"a{i}")["finish_reason"] for i in range(10)} == {"length", "stop"}
    assert computed_again(state) == [1] * 9, "of each completion its last token, which had no successor yet"


def test_a_stop_string_takes_back_no_more_than_its_own_tokens(endpoint: RuntimeEndpoint) -> None:
    state = ten_turns.run([" the", ". ", "ing"], backend=endpoint)
    assert max(computed_again(state)) <= 3
    assert all(stop not in state[f"a{i}"] for i in range(10) for stop in (" the", ". ", "ing"))


def test_generated_tokens_are_sent_as_they_were(endpoint: RuntimeEndpoint) -> None:
    sent: list[dict] = []
    real = endpoint._http.post

    async def post(path: str, body: dict) -> bytes:
        sent.append(body)
        return await real(path, body)

    endpoint._http.post = post  # type: ignore[method-assign]
    try:

        @sgl.function
        def program(s: ProgramState) -> None:
            s += "The list:" + sgl.gen("a", max_tokens=8, temperature=1.5, seed=3) + " and " + "then"
            s += sgl.gen("b", max_tokens=4)

        state = program.run(backend=endpoint)
    finally:
        del endpoint._http.post
    first, second = [body for body in sent if "max_tokens" in body]
    assert first["prompt"] == ["The list:"]
    text, ids, *rest = second["prompt"]
    assert (text, rest) == ("The list:", [" and ", "then"])
    assert len(ids) == 8
    assert all(isinstance(i, int) for i in ids)
    assert state.meta("b")["cached_tokens"] == state.meta("a")["prompt_tokens"] + 8 - 1


def test_a_batch_computes_its_literal_prefix_once(endpoint: RuntimeEndpoint) -> None:
    prefix = long_text("A batch of sixteen", 40)

    @sgl.function
    def program(s: ProgramState, question: str) -> None:
        s += prefix + "\n"
        s += question + sgl.gen("x", max_tokens=2)

    length = token_count(endpoint, prefix + "\n")
    states = program.run_batch([{"question": f"Question {i}?"} for i in range(16)], backend=endpoint)
    reports = [state.report() for state in states]
    distinct = length + sum(report.prompt_tokens - length for report in reports)
    assert sum(report.computed_tokens for report in reports) <= 1.02 * distinct


def test_choices_are_scored_on_the_cached_prefix(endpoint: RuntimeEndpoint) -> None:
    prefix = long_text("Four choices", 30)

    @sgl.function
    def program(s: ProgramState) -> None:
        s += (
            prefix
            + sgl.gen("x", max_tokens=2, temperature=0)
            + "\nIt is"
            + sgl.select("c", [" a", " the", " an", " no"])
        )

    meta = program.run(backend=endpoint).meta("c")
    assert meta["prompt_tokens"] - meta["cached_tokens"] <= 4 * 6
    assert all(math.isfinite(score) and score < 0 for score in meta["scores"].values())


def test_logprobs_where_they_are_asked_for(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "The capital of France is" + sgl.gen("a", max_tokens=3, temperature=0, logprobs=2)
        s += sgl.gen("b", max_tokens=3, stop="zzz")

    state = program.run(backend=endpoint)
    shown = state.meta("a")["logprobs"]
    assert "".join(each["text"] for each in shown) == state["a"]
    assert all(each["top"][0]["logprob"] == each["logprob"] and len(each["top"]) == 2 for each in shown)
    assert "logprobs" not in state.meta("b")
