"""The detokenizer against decoding everything at once; the stop matcher against a search of the whole text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.text.detokenizer import Detokenizer, StopMatcher
from sapwood.runtime.text.tokenizers.base import Tokenizer


def whole_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", "replace")


def in_chunks(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(0, 1000), max_size=20)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), cuts=CUTS)
def test_joined_deltas_of_any_ids_equal_the_text_of_all_bytes(
    smollm2: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    detokenizer = Detokenizer(smollm2, skip_special_tokens=False)
    deltas = [detokenizer.push(chunk) for chunk in in_chunks(ids, cuts)]
    assert "".join(deltas) + detokenizer.flush() == whole_text(smollm2, ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("안녕🚲řa é👩‍👩‍👧\n"), max_size=30))
def test_no_replacement_character_where_the_text_has_none(smollm2: Tokenizer, text: str) -> None:
    """R01: every token alone is a chunk, so that characters are cut at every possible place."""
    detokenizer = Detokenizer(smollm2)
    deltas = [detokenizer.push([token_id]) for token_id in smollm2.encode(text)]
    assert not any("\ufffd" in delta for delta in deltas)
    assert detokenizer.flush() == ""
    assert "".join(deltas) == text


def test_an_unfinished_character_is_held_and_flushed_once(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("a🚲")
    detokenizer = Detokenizer(smollm2)
    assert [detokenizer.push([i]) for i in ids[:-1]] == ["a", *[""] * (len(ids) - 2)]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_control_tokens_are_shown_only_on_request(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("a<|im_end|>b", allow_control=True)
    assert Detokenizer(smollm2).push(ids) == "ab"
    assert Detokenizer(smollm2, skip_special_tokens=False).push(ids) == "a<|im_end|>b"


# --- stop strings ------------------------------------------------------------------------------------------------


def first_match(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By trying every end from the left, and at every end the longest stop string first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


@settings(max_examples=600, deadline=None)
@given(pieces=st.lists(st.text("abcd", max_size=5), max_size=8), stops=STOPS)
def test_the_first_stop_string_ends_the_text_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out, matched = "", None
    for piece in pieces:
        emitted, matched = matcher.push(piece)
        out += emitted
        if matched is not None:
            break
    if matched is None:
        out += matcher.flush()
    assert (out, matched) == first_match("".join(pieces), stops)


@settings(max_examples=600, deadline=None)
@given(text=st.text("abcd", max_size=20), stops=STOPS)
def test_text_is_held_back_only_while_it_can_begin_a_stop_string(text: str, stops: list[str]) -> None:
    """What is held is the longest tail that is a true prefix of a stop string which can still come first."""
    possible = [s for s in stops if not any(other in s[:-1] for other in stops)]
    matcher = StopMatcher(stops)
    out = ""
    for index, char in enumerate(text):
        emitted, matched = matcher.push(char)
        out += emitted
        if matched is not None:
            return
        seen = text[: index + 1]
        tails = [seen[start:] for start in range(len(seen))]
        held = next((t for t in tails if any(s.startswith(t) and s != t for s in possible)), "")
        assert seen == out + held


def test_a_stop_string_across_chunks_never_shows(smollm2: Tokenizer) -> None:
    """R03, for every token alone."""
    text = "the quick brown fox jumps"

    def run(stops: list[str]) -> tuple[str, str | None]:
        matcher = StopMatcher(stops)
        out = ""
        for token_id in smollm2.encode(text):
            emitted, matched = matcher.push(smollm2.token_text(token_id))
            out += emitted
            if matched:
                return out, matched
        return out + matcher.flush(), None

    assert run(["ck bro"]) == ("the qui", "ck bro")
    assert run(["ck broom"]) == (text, None)


def test_of_stop_strings_that_end_together_the_longer_one_is_found() -> None:
    assert StopMatcher(["c", "bc", "xbc"]).push("abcd") == ("a", "bc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
