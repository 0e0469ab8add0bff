"""Control tokens in rendered text: those that the template wrote, whatever stands around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.text.chat.control_text import ControlText
from sapwood.runtime.text.chat.own_text import concat, written
from sapwood.runtime.text.tokenizers.base import Fragment, Tokenizer

MakeTokenizer = Callable[[Any], Tokenizer]
Show = Callable[[Tokenizer, list[Fragment]], str]
OWN = st.tuples(st.just(True), st.text("<ab> ", max_size=6))
USERS = st.tuples(st.just(False), st.text("<ab> \U0010f000", max_size=6))
PARTS = st.lists(OWN | USERS, max_size=6)


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.text("<ab>", min_size=2, max_size=5), min_size=1, max_size=3), parts=PARTS)
def test_tokens_are_found_in_own_text_alone(
    with_control_tokens: MakeTokenizer, shown: Show, tokens: list[str], parts: list[tuple[bool, str]]
) -> None:
    """They are what the tokenizer finds in each run of own text by itself, and no character is lost."""
    tokenizer = with_control_tokens(tokens)
    text = concat(written(part) if own else part for own, part in parts)
    found = ControlText("", tokenizer).split(text)
    assert shown(tokenizer, found) == text
    runs: list[str] = [""]
    for own, part in parts:
        if part and own:
            runs[-1] += part
        elif part:
            runs.append("")
    expected = [f for run in runs for f in tokenizer.split_control(run) if isinstance(f, int)]
    assert [f for f in found if isinstance(f, int)] == expected


@pytest.mark.parametrize("inner", [" ", "\n", "of"])
def test_a_space_of_users_completes_no_token_that_has_one(with_control_tokens: MakeTokenizer, inner: str) -> None:
    tokenizer = with_control_tokens([f"<end{inner}turn>", "<end turn>"])
    split = ControlText("", tokenizer).split
    assert split(concat([written("<end"), inner, written("turn>")])) == [f"<end{inner}turn>"]
    assert len([f for f in split(written(f"<end{inner}turn>")) if isinstance(f, int)]) == 1
