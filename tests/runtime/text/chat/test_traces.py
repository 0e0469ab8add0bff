"""Copies of conversations without their texts, and how much of a long one is tried out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.text.chat.traces import first_untraced, marked, shortened
from sapwood.runtime.text.chat.turns import short_id

Message = dict[str, Any]


def says(role: str, content: str = "x", **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def calls(*ids: str, name: str = "f", arguments: Any = '{"a": 1}') -> Message:
    made = [{"id": each, "type": "function", "function": {"name": name, "arguments": arguments}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": made}


def result(call_id: str) -> Message:
    return says("tool", "secret", tool_call_id=call_id)


TURNS = {
    "u": lambda n: [says("user")],
    "a": lambda n: [says("assistant")],
    "s": lambda n: [says("system")],
    "e": lambda n: [says("assistant", " ")],
    "c": lambda n: [calls(f"call_{n}"), result(f"call_{n}")],
    "d": lambda n: [calls(f"call_{n}a", f"call_{n}b"), result(f"call_{n}b"), result(f"call_{n}a")],
    "b": lambda n: [calls(f"abcDEF{n:03d}", arguments='{"a'), result(f"abcDEF{n:03d}")],
}


def conversation(turns: Sequence[str]) -> list[Message]:
    return [message for n, turn in enumerate(turns) for message in TURNS[turn](n)]


def kinds(messages: Sequence[Message]) -> list[str]:
    """The letters of TURNS again."""
    made = []
    for message in messages:
        given = message.get("tool_calls", ())
        if given:
            made.append("d" if len(given) == 2 else "c" if "call" in given[0]["id"] else "b")
        elif message["role"] != "tool":
            made.append("e" if message["content"] == " " else message["role"][0])
    return made


def test_a_copy_has_none_of_the_texts() -> None:
    secret = "secret"
    messages = [
        says("user", secret),
        {**calls("call_1", name=secret, arguments=json.dumps({secret: secret})), "reasoning_content": secret},
        result("call_1"),
        {**calls("functions.secret:0", name=secret, arguments='{"secret'), "content": secret},
    ]
    copies, marks = marked(messages)
    assert secret not in json.dumps(copies)
    assert [len(each) for each in marks] == [1, 2, 1, 3]
    assert len(set(itertools.chain.from_iterable(marks))) == 7
    assert copies[1]["tool_calls"][0]["id"] == copies[2]["tool_call_id"]
    assert len(copies[2]["tool_call_id"]) == len("call_1")
    assert marks[3][1] in copies[3]["tool_calls"][0]["id"], "the name that is in an id"
    text = json.dumps(copies)
    assert first_untraced(text, marks) is None
    assert first_untraced(text.replace(marks[2][0], ""), marks) == 2


def test_conversations_of_one_shape_have_one_copy() -> None:
    one = [says("user", "a"), calls("call_abc"), result("call_abc")]
    other = [says("user", "b" * 99), calls("call_xyz", name="g", arguments={"b": [2]}), result("call_xyz")]
    assert marked(one) == marked(other)
    assert marked(one) != marked([*one[:2], result("call_xyz")]), "a result of another call"


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*TURNS]), min_size=1, max_size=40))
def test_what_is_left_out_of_a_long_conversation_only_repeats(turns: list[str]) -> None:
    short = shortened(conversation(turns))
    left = kinds(short)
    assert left[:3] == turns[:3]
    assert left[-3:] == turns[-3:]
    assert {*zip(turns, turns[1:], turns[2:])} == {*zip(left, left[1:], left[2:])}
    for message in (each for each in short if "tool_calls" in each):
        at = short.index(message)
        n = len(message["tool_calls"])
        ids = {call["id"] for call in message["tool_calls"]}
        assert {each["tool_call_id"] for each in short[at + 1 : at + 1 + n]} == ids, "results stay with their calls"


def test_rounds_that_repeat_are_tried_out_a_few_times_at_most() -> None:
    for turn in ("ua", "uca", "uccda", "usae"):
        assert len(kinds(shortened(conversation(turn * 200)))) <= 3 * len(turn)


def test_short_ids_are_of_nine_letters_and_digits_and_tell_calls_apart() -> None:
    given = [f"call_{n}" for n in range(2000)]
    ids = [short_id(each) for each in given]
    assert len(set(ids)) == 2000
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)
    assert [short_id(each) for each in given] == ids
    assert [short_id(each) for each in ids] == ids, "what is right already stays"
    assert short_id("äbcdefghi").isascii()
    assert len(short_id("")) == len(short_id("\ud800")) == 9
