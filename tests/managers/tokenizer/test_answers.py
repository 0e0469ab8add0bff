"""From tokens to text: what the tokenizer process tells the front."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sapwood.managers.wire.answers import Finish
from sapwood.managers.wire.requests import StopMatched, Submit
from sapwood.runtime.records import TopLogprobs
from sapwood.runtime.wanted import HiddenStates, PromptLogprobs, Wanted
from tests.managers.tokenizer.conftest import NO_TOP, WAIT, Ids, Make, Rig

# --- out --------------------------------------------------------------------------------------------------------


def open_sample(rig: Rig, submit: Submit) -> str:
    rig.submit(submit)
    return submit.request_id


def test_tokens_become_text_with_their_counts(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("the"))
    first = rig.text(sample, ids_of("ab"), cached_tokens=0)
    last = rig.text(sample, ids_of("c"), finish=Finish("length"))
    assert (first.text, first.completion_tokens, first.prompt_tokens, first.finish) == ("ab", 2, 1, None)
    assert (last.text, last.completion_tokens, last.finish) == ("c", 3, Finish("length"))


def test_a_character_in_pieces_is_held_until_whole_and_flushed_at_the_end(
    rig: Rig, ids_of: Ids, request_for: Make
) -> None:
    sample = open_sample(rig, request_for("a"))
    pieces = ids_of("🚲é")
    texts = [rig.text(sample, [piece]).text for piece in pieces[:-1]]
    assert "".join(texts) == "🚲"
    assert rig.text(sample, [], finish=Finish("length")).text == "\ufffd"


def test_a_stop_string_over_several_chunks_ends_the_sample(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["ck bro"]))
    chunks = [rig.text(sample, [token]) for token in ids_of("quick bro")]
    assert "".join(chunk.text for chunk in chunks) == "qui"
    assert chunks[-1].finish == Finish("stop", matched="ck bro")
    assert rig.scheduler.receive(WAIT) == StopMatched(sample, 0)
    rig.feed(sample, ids_of("wn"))
    assert rig.nothing_came()


def test_what_only_might_become_a_stop_is_released(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["ck broom"]))
    chunks = [rig.text(sample, [token]) for token in ids_of("quick brow")]
    assert [chunk.text for chunk in chunks[-2:]] == ["", "ck brow"]
    assert rig.text(sample, ids_of("c"), finish=Finish("length")).text == "c"


def test_a_stop_in_the_last_chunk_wins_over_its_length(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"]))
    chunk = rig.text(sample, ids_of("xbyz"), finish=Finish("length"), logprobs=[-1.0] * 4, top=[NO_TOP] * 4)
    assert (chunk.text, chunk.finish) == ("x", Finish("stop", matched="b"))
    assert (chunk.token_ids, chunk.completion_tokens, len(chunk.logprobs)) == (ids_of("xb"), 2, 2)
    assert rig.nothing_came()


def test_include_stop_keeps_it(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"], include_stop=True))
    assert rig.text(sample, ids_of("xby"), finish=Finish("length")).text == "xb"


def test_stop_strings_wait_for_min_tokens(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"], min_tokens=3))
    chunk = rig.text(sample, ids_of("bbbab"), finish=Finish("length"))
    assert (chunk.text, chunk.completion_tokens) == ("bbba", 5)


def test_the_end_token_counts_but_has_no_text(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    [end] = ids_of("<|end|>")
    for fields in ({}, {"skip_special_tokens": False}):
        sample = open_sample(rig, request_for("a", **fields))
        chunk = rig.text(sample, [*ids_of("b"), end], finish=Finish("stop", matched=end))
        assert (chunk.text, chunk.token_ids, chunk.completion_tokens) == ("b", [*ids_of("b"), end], 2)
    sample = open_sample(rig, request_for("a", skip_special_tokens=False, include_stop=True))
    assert rig.text(sample, [end], finish=Finish("stop", matched=end)).text == "<|end|>"
    [letter] = ids_of("z")
    sample = open_sample(rig, request_for("a", stop_token_ids=[letter]))
    assert rig.text(sample, [letter], finish=Finish("stop", matched=letter)).text == ""
    sample = open_sample(rig, request_for("a", ignore_eos=True))
    assert rig.text(sample, [end, letter], finish=Finish("length")).text == "z"


def test_echo_begins_with_the_prompts_own_text(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    submit = request_for(["<|end|>é", ids_of("b")], echo=True, n=2)
    rig.submit(submit, 2)
    for index in range(2):
        assert rig.text(submit.request_id, ids_of("c"), index).text == "<|end|>ébc"
        assert rig.text(submit.request_id, ids_of("d"), index, finish=Finish("length")).text == "d"


def test_log_probabilities_are_spelled_out(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", logprobs=1))
    half = ids_of("é")[0]
    chunk = rig.text(
        sample, [half], logprobs=[-1.5], top=[TopLogprobs(ids_of("the"), [-0.25])], finish=Finish("length")
    )
    [entry] = chunk.logprobs
    assert (entry.token_id, entry.logprob, entry.data, entry.text) == (half, -1.5, "é".encode()[:1], "\ufffd")
    assert [(each.text, each.logprob) for each in entry.top] == [("the", -0.25)]


@pytest.mark.parametrize(("start", "values"), [(0, [None, -2.0, -3.0]), (1, [-2.0, -3.0]), (2, [-3.0])])
def test_prompt_log_probabilities_start_where_wanted(
    rig: Rig, ids_of: Ids, request_for: Make, start: int, values: list[float | None]
) -> None:
    submit = request_for("abc", prompt_logprobs=0, logprob_start=start)
    [request] = rig.submit(submit)
    assert request.wanted == Wanted("logprobs", max(1, start))
    scored = [value for value in values if value is not None]
    answer = PromptLogprobs(max(1, start), scored, [TopLogprobs([], [])] * len(scored))
    before = rig.text(submit.request_id, ids_of("x"))
    with_scores = rig.text(submit.request_id, ids_of("y"), prompt=answer)
    after = rig.text(submit.request_id, ids_of("z"), finish=Finish("length"))
    assert (before.prompt_logprobs, after.prompt_logprobs) == (None, None)
    assert with_scores.prompt_logprobs is not None
    assert [(each.token_id, each.logprob) for each in with_scores.prompt_logprobs] == list(
        zip(ids_of("abc")[start:], values)
    )


def test_a_prompt_of_one_token_has_one_entry_without_a_value(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    submit = request_for("a", prompt_logprobs=2)
    [request] = rig.submit(submit)
    assert request.wanted is None
    chunk = rig.text(submit.request_id, ids_of("x"), finish=Finish("length"))
    assert chunk.prompt_logprobs is not None
    assert [(each.token_id, each.logprob, each.top) for each in chunk.prompt_logprobs] == [(ids_of("a")[0], None, [])]
    assert rig.rejected(request_for("a", prompt_logprobs=0, logprob_start=1)).path == ["logprob_start"]


@pytest.mark.parametrize(("start", "known"), [(-1, 2), (-9, 0), (0, 0), (1, 1)])
def test_hidden_states_pass_through_from_where_they_are_wanted(
    rig: Rig, ids_of: Ids, request_for: Make, start: int, known: int
) -> None:
    submit = replace(request_for("abc", max_tokens=0), wanted=Wanted("hidden", start))
    [request] = rig.submit(submit)
    assert request.wanted == Wanted("hidden", known)
    answer = HiddenStates(known, 2, bytes(8 * (3 - known)))
    chunk = rig.text(submit.request_id, [], finish=Finish("length"), prompt=answer)
    assert (chunk.hidden, chunk.prompt_logprobs) == (answer, None)
    assert rig.rejected(replace(request_for("a"), wanted=Wanted("hidden", 1))).path == ["start"]


def test_a_score_carries_the_continuations_tokens(rig: Rig, ids_of: Ids, score_for: Make) -> None:
    submit = score_for("at", ["he"], logprobs=1)
    rig.submit(submit)
    answer = PromptLogprobs(1, [-4.0], [TopLogprobs(ids_of("x"), [-0.1])])
    chunk = rig.text(submit.request_id, [], finish=Finish("length"), prompt=answer, cached_tokens=1)
    assert chunk.prompt_logprobs is not None
    [entry] = chunk.prompt_logprobs
    assert (entry.text, entry.logprob, entry.top[0].text) == ("the", -4.0, "x")
    assert (chunk.text, chunk.cached_tokens, chunk.prompt_tokens) == ("", 1, 2)
