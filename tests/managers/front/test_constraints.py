"""What a request's constraint may be at the door, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapwood.constrained.spec import MAX_CHOICES, MAX_CONSTRAINT_BYTES, Constraint
from sapwood.managers.front.requests.bodies import decode_body, struct_from
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest, ScoreRequest
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.requests import Submit
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "é"}}, "required": ["b"]}
TAG = {"triggers": ["<a>"], "structures": [{"begin": "<a>", "regex": "x", "end": "</a>"}]}
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def allowed_tools(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


KINDS = {"json_schema": SCHEMA, "json_object": True, "regex": "a+", "ebnf": 'root ::= "a"', "choice": ["a", "b"]}
KINDS["structural_tag"] = TAG


def submit(**fields: Any) -> Submit:
    fields = fields if "messages" in fields else {"prompt": "hi", **fields}
    return to_submit(struct_from(fields, GenerateRequest), vocab_size=300, defaults=OPENAI_DEFAULTS)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        submit(**fields)
    return caught.value


def test_a_request_without_a_constraint_has_none() -> None:
    assert submit().constraint is None
    assert submit(json_object=False, regex=None).constraint is None


@pytest.mark.parametrize(
    ("fields", "kind", "body"),
    [
        ({"json_schema": SCHEMA}, "json_schema", json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))),
        ({"json_schema": ' {"type": "null"}'}, "json_schema", ' {"type": "null"}'),
        ({"json_schema": False}, "json_schema", "false"),
        ({"json_schema": True}, "json_schema", "true"),
        ({"json_object": True}, "json_object", ""),
        ({"regex": "[ab]{3}"}, "regex", "[ab]{3}"),
        ({"regex": ""}, "regex", ""),
        ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"structural_tag": TAG}, "structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ],
)
def test_each_kind_has_its_body_with_the_keys_in_order(fields: dict[str, Any], kind: str, body: str) -> None:
    constraint = submit(**fields).constraint
    assert constraint == Constraint(kind, body)  # type: ignore[arg-type]
    decoded = decode_body(json.dumps({"prompt": "hi", **fields}).encode(), GenerateRequest)
    assert to_submit(decoded, vocab_size=300, defaults=OPENAI_DEFAULTS).constraint == constraint


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_two_constraints_are_refused_by_both_names(first: str, second: str) -> None:
    if first == second:
        return
    error = refused(**{first: KINDS[first], second: KINDS[second]})
    assert error.field in (first, second)
    assert first in str(error)
    assert second in str(error)


def test_the_options_reach_the_constraint() -> None:
    constraint = submit(
        json_schema={}, strict=False, grammar_engine="xgrammar", max_whitespace=0, max_string=0
    ).constraint
    assert constraint == Constraint("json_schema", "{}", False, 0, 0, "xgrammar")
    constraint = submit(json_schema={}, extra_properties=True).constraint
    assert constraint == Constraint("json_schema", "{}", extra_properties=True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"strict": False}, "strict"),
        ({"grammar_engine": "xgrammar"}, "grammar_engine"),
        ({"max_whitespace": 1}, "max_whitespace"),
        ({"max_string": 5}, "max_string"),
        ({"max_string": 0}, "max_string"),
        ({"extra_properties": True}, "extra_properties"),
        ({"json_object": True, "extra_properties": True}, "extra_properties"),
        ({"regex": "a", "strict": False}, "strict"),
        ({"json_object": True, "strict": False}, "strict"),
        ({"regex": "a", "max_whitespace": 1}, "max_whitespace"),
        ({"choice": ["a"], "max_string": 1}, "max_string"),
        ({"json_object": True, "max_whitespace": -1}, "max_whitespace"),
        ({"json_object": True, "max_whitespace": 65}, "max_whitespace"),
        ({"json_schema": {}, "max_string": 10**9}, "max_string"),
        ({"json_schema": {}, "grammar_engine": "outlines"}, "grammar_engine"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": '{"const": NaN}'}, "json_schema"),
        ({"json_schema": "[" * 100_000}, "json_schema"),
        ({"json_schema": "5"}, "json_schema"),
        ({"json_schema": {"const": float("inf")}}, "json_schema"),
        ({"json_schema": {"const": "\ud800"}}, "json_schema.const"),
        ({"json_schema": [1]}, "json_schema"),
        ({"regex": "\ud800"}, "regex"),
        ({"regex": 5}, "regex"),
        ({"regex": "a" * (MAX_CONSTRAINT_BYTES + 1)}, "regex"),
        ({"json_schema": {"const": "é" * (MAX_CONSTRAINT_BYTES // 2)}}, "json_schema"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice[1]"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a", "min_tokens": 2}, "min_tokens"),
        ({"messages": USER, "tools": [TOOL], "structural_tag": {}}, "structural_tag"),
        ({"messages": USER, "tools": [TOOL], "ignore_eos": True}, "ignore_eos"),
        ({"messages": USER, "tools": [TOOL], "tool_choice": "none", "strict": False}, "strict"),
        ({"tool_choice": "auto"}, "tool_choice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    error = refused(**fields)
    assert error.field == field
    assert field.partition(".")[0].partition("[")[0] in str(error)
    assert len(str(error)) < 400


def test_a_schema_that_is_nested_too_deeply_to_travel_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    assert "nested too deeply" in str(refused(json_schema=schema))


def test_scoring_takes_no_constraint() -> None:
    with pytest.raises(InvalidRequest, match="regex"):
        struct_from({"prompt": "a", "continuations": ["b"], "regex": "a"}, ScoreRequest)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("auto", None, True)),
        ({"tool_choice": "none"}, ("none", None, True)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ("required", None, False)),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ("required", ["f"], False)),
        (
            {"tool_choice": allowed_tools("required", "g", "f", "g"), "parallel_tool_calls": None},
            ("required", ["g", "f"], True),
        ),
        (
            {"tool_choice": allowed_tools("auto", "f"), "parallel_tool_calls": False},
            ("auto", ["f"], False),
        ),
    ],
)
def test_a_choice_of_tools_travels_with_the_conversation(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    made = submit(messages=USER, tools=[TOOL, {"type": "function", "function": {"name": "g"}}], **given)
    assert made.chat is not None
    assert (made.chat.tool_choice, made.chat.allowed, made.chat.parallel_tool_calls) == expected
    assert (made.constraint is None) == (expected[0] == "none")


def test_tools_shown_only_leave_room_for_a_constraint() -> None:
    made = submit(messages=USER, tools=[TOOL], tool_choice="none", regex="a")
    assert made.constraint == Constraint("regex", "a")


def test_with_tools_to_call_a_constraint_is_for_the_answer_and_its_options_for_both() -> None:
    made = submit(messages=USER, tools=[TOOL], regex="a")
    assert made.constraint == Constraint("regex", "a")
    made = submit(messages=USER, tools=[TOOL], regex="a", strict=False, extra_properties=True, max_string=5)
    assert made.constraint == Constraint("regex", "a", strict=False, extra_properties=True, max_string=5)
    assert made.chat is not None
    assert made.chat.max_string == 5
    assert refused(messages=USER, tools=[TOOL], tool_choice="none", regex="a", max_string=5).field == "max_string"
    unbound = submit(messages=USER, tools=[TOOL], json_object=True)
    assert unbound.chat is not None
    assert (unbound.chat.max_string, unbound.constraint) == (0, Constraint("json_object"))
