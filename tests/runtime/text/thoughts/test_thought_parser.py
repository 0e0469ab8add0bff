"""Thinking told from the answer: the same whatever pieces the text comes in, and nothing lost but marks and space."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapwood.runtime.text.thoughts.marks import Begins, ReasoningFormat
from sapwood.runtime.text.thoughts.thought_parser import ReasoningParser

pytestmark = pytest.mark.fast

THINK = ReasoningFormat("think", "<think>", "</think>")
PIECES = ["<think>", "</think>", "<", "</", "think", ">", "a", "é", " ", "\n", "\n\n", "<think", "</think", "x y"]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
starts = st.sampled_from(["inside", "unknown", "answer"])
gaps = st.sampled_from([None, "", "\n", "\n\n"])


def parsed(text: str, begins: Begins, gap: str | None = None, cuts: tuple[int, ...] = ()) -> tuple[str, str]:
    parser = ReasoningParser(THINK, begins, gap)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [parser.push(text[a:b]) for a, b in itertools.pairwise(edges)] + [parser.flush()]
    return "".join(thought for thought, _ in pieces), "".join(answer for _, answer in pieces)


def by_regex(text: str, begins: Begins, gap: str | None) -> tuple[str, str]:
    """What the parser is to give, from the whole text."""
    space = "[ \t\r\n]*"
    opening = "" if begins == "inside" else "<think>"
    if begins == "answer" or not (found := re.match(f"{space}{opening}(.*?)(</think>(.*))?$", text, re.DOTALL)):
        return "", text
    rest = found[3] or ""
    rest = rest.lstrip(" \t\r\n") if gap is None else "" if gap.startswith(rest) else rest.removeprefix(gap)
    return found[1].strip(" \t\r\n"), rest


@given(texts, starts, gaps, st.lists(st.integers(0, 60), max_size=8).map(tuple))
@example("<think>a</think>\n\nx", "unknown", "\n\n", (1, 5, 9, 17, 18))
@example("  <thin", "unknown", None, (1,))
@example("a </thin </think> b", "inside", None, (4, 9))
@settings(max_examples=400)
def test_any_cut_gives_what_the_whole_text_says(
    text: str, begins: Begins, gap: str | None, cuts: tuple[int, ...]
) -> None:
    assert parsed(text, begins, gap, cuts) == by_regex(text, begins, gap)
    assert parsed(text, begins, gap, tuple(range(len(text)))) == by_regex(text, begins, gap)


@pytest.mark.parametrize(
    ("text", "begins", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nyes", "unknown", ("why", "yes")),
        ("why\n</think>\n\nyes </think>", "inside", ("why", "yes </think>")),
        ("yes <think>no</think>", "unknown", ("", "yes <think>no</think>")),
        ("<think>cut off\n", "unknown", ("cut off", "")),
        ("<think></think>  yes ", "unknown", ("", "yes ")),
        ("  <thank>", "unknown", ("", "  <thank>")),
        ("</think>yes", "answer", ("", "</think>yes")),
    ],
)
def test_examples(text: str, begins: Begins, expected: tuple[str, str]) -> None:
    assert parsed(text, begins) == expected


def test_nothing_is_held_back_longer_than_it_can_be_part_of_a_mark() -> None:
    parser = ReasoningParser(THINK, "inside")
    assert [parser.push(each)[0] for each in ("so </", "th", "at", " is", " ", "it")] == [
        "so",
        "",
        " </that",
        " is",
        "",
        " it",
    ]


def test_an_exact_gap_leaves_the_space_that_belongs_to_the_answer() -> None:
    assert parsed("a</think>\n\n\n x", "inside", "\n\n") == ("a", "\n x")
    assert parsed("a</think>  x", "inside", "") == ("a", "  x")
