"""Tool calls in a text that comes in pieces: any cut gives the same, and what is no call stays text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.runtime.text.chat.tools.call_parser import ToolCallParser
from sapwood.runtime.text.chat.tools.known_formats import HERMES, LLAMA3, SMOLLM2
from sapwood.runtime.text.chat.tools.tool_format import ToolFormat

NAMES = ["f", "get_weather", "a.b"]
FORMATS = [HERMES, SMOLLM2, LLAMA3]
Read = tuple[str, list[tuple[str, str]], bool]


def read(style: ToolFormat, pieces: Iterable[str]) -> Read:
    """(text around the calls, (name, arguments) of each call, whether calls were made) of a text in pieces."""
    parser = ToolCallParser(style, NAMES)
    text, calls = "", []
    for piece in [*pieces, None]:
        more, new, _ = parser.flush() if piece is None else parser.push(piece)
        text += more
        for each in new:
            assert bool(each.name) == (each.index == len(calls)), "the name comes once, and first"
            if each.name:
                calls.append((each.name, ""))
            name, arguments = calls[each.index]
            calls[each.index] = (name, arguments + each.arguments)
    return text, calls, parser.called


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


F = '{"name": "f", "arguments": {"a": "x}\\"<", "b": [1, {}]}}'
F_ARGUMENTS = '{"a": "x}\\"<", "b": [1, {}]}'
W = '{"name": "get_weather", "parameters": {}}'
EXAMPLES = [
    (HERMES, "Just text, 1 < 2.", ("Just text, 1 < 2.", [], False)),
    (HERMES, hermes(F), ("", [("f", F_ARGUMENTS)], True)),
    (HERMES, f"I look. \n{hermes(F, W)}\n", ("I look.", [("f", F_ARGUMENTS), ("get_weather", "{}")], True)),
    (HERMES, f"{hermes(F)} Done. {hermes(W)}", ("", [("f", F_ARGUMENTS)], True)),
    (HERMES, f"{hermes(F)}\n<tool_call>\nmore", ("", [("f", F_ARGUMENTS)], True)),
    (HERMES, f"<tool_call>{F}</tool_call>", ("", [("f", F_ARGUMENTS)], True)),
    (HERMES, f"<tool_call>[{F}, {W}]</tool_call>", ("", [("f", F_ARGUMENTS), ("get_weather", "{}")], True)),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "id": [2], "name": "f"}</tool_call>', ("", [("f", '{"a": 1}')], True)),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("f", '{"a": 1}')], True)),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")], True)),
    (HERMES, '<tool_call>{"name": "g", "arguments": {}}</tool_call>', None),
    (HERMES, "<tool_call>f(a=1)</tool_call>", None),
    (HERMES, "a <tool_call> b", None),
    (HERMES, 'a <tool_call>{"name": "f", "argu', None),
    (HERMES, hermes(F)[: -len("}]}}\n</tool_call>")], ("", [("f", F_ARGUMENTS[:-3])], False)),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": ', ("", [("f", '{"a": ')], False)),
    (HERMES, "  leading, trailing \n", None),
    (SMOLLM2, f"<tool_call>[{F}]</tool_call>", ("", [("f", F_ARGUMENTS)], True)),
    (SMOLLM2, "<tool_call>[]</tool_call>", None),
    (LLAMA3, W, ("", [("get_weather", "{}")], True)),
    (LLAMA3, f"{W}; {W}\n", ("", [("get_weather", "{}")] * 2, True)),
    (LLAMA3, f"Well: {W}, {F} so", ("Well:", [("get_weather", "{}"), ("f", F_ARGUMENTS)], True)),
    (LLAMA3, '{"name": "Bob", "parameters": {}}', None),
    (LLAMA3, '{"name": "f", "age": 7}', None),
    (LLAMA3, '{{ "x": {"name" } }', None),
    (LLAMA3, 'if (a) { return "name"; }', None),
]


@pytest.mark.parametrize(("style", "text", "expected"), EXAMPLES)
def test_calls_are_found_and_what_is_none_stays_text(style: ToolFormat, text: str, expected: Read | None) -> None:
    assert read(style, [text]) == (expected or (text, [], False))


@pytest.mark.parametrize(("style", "text"), [(style, text) for style, text, _ in EXAMPLES])
def test_every_cut_in_two_and_every_single_character_give_the_same(style: ToolFormat, text: str) -> None:
    whole = read(style, [text])
    assert read(style, text) == whole
    for i in range(len(text)):
        assert read(style, [text[:i], text[i:]]) == whole


PARTS = [
    *["<tool_call>", "</tool_call>", "<", "{", "}", "[", "]", ",", ";", " ", "\n", '"', "\\", ":", "x", "é"],
    *['{"name": "f"', '"name"', '"arguments": {"a": "', '"parameters": ', F, W, hermes(F), '"}}', "1"],
]


@given(style=st.sampled_from(FORMATS), parts=st.lists(st.sampled_from(PARTS)), data=st.data())
def test_any_text_in_any_pieces_gives_the_same(style: ToolFormat, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert read(style, pieces) == read(style, [text]) == read(style, text)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(), JSON, max_size=3)


@given(
    style=st.sampled_from(FORMATS),
    calls=st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3),
    ascii=st.booleans(),
    before=st.sampled_from(["", "I will look that up."]),
)
def test_what_a_format_writes_is_read_back(
    style: ToolFormat, calls: list[tuple[str, Any]], ascii: bool, before: str
) -> None:
    written = [(name, json.dumps(arguments, ensure_ascii=ascii)) for name, arguments in calls]
    text = f"{before}\n{style.written(written)}"
    assert read(style, text) == (before, written, True)


@pytest.mark.parametrize("style", FORMATS)
def test_arguments_are_given_out_as_they_come(style: ToolFormat) -> None:
    parser = ToolCallParser(style, NAMES)
    given = [parser.push(char) for char in style.written([("f", '{"a": "bcd"}')])]
    pieces = [piece for text, new, _ in given for piece in new if text == ""]
    assert [piece.arguments for piece in pieces] == list('{"a": "bcd"}')
    assert [piece.name for piece in pieces if piece.name] == ["f"]


def test_text_is_held_back_only_while_it_may_become_a_call() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert [parser.push(piece)[0] for piece in ["a", " ", "b <t", "ool", "s", "."]] == [
        "a",
        "",
        " b",
        "",
        " <tools",
        ".",
    ]
