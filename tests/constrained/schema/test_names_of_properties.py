"""Where a schema leaves an object only few names, they are counted exactly, and what cannot be is refused by place."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sapwood.constrained.engines.registry import load
from sapwood.constrained.schema.declare_names import choices_of_names
from sapwood.constrained.schema.finite_names import names_of_pattern
from sapwood.constrained.spec import ConstraintError
from tests.constrained.deciding import OCTETS, compiled, verdicts

ONE: dict[str, Any] = {"const": 1}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
VALUES = st.sampled_from([True, ONE, False])
DOCUMENTS = [dict.fromkeys(names, 1) for size in range(4) for names in itertools.combinations("abcx", size)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^a$", ("a",)),
        ("^[ab]$", ("a", "b")),
        ('^(foo|bar|b"z|\\\\)$', ("\\", 'b"z', "bar", "foo")),
        ("^a?b{1,2}$", ("ab", "abb", "b", "bb")),
        (r"^(?:é|😀|\n)$", ("\n", "é", "😀")),
        ("^$", ("",)),
        (r"^\d$", tuple("0123456789")),
        *((endless, None) for endless in ("a", "^a", "a$", "^a*$", "^a|b$", "^[0-9]{2}$", "^.$", "^[^a]$", "^(?!b)a$")),
    ],
)
def test_the_names_of_a_pattern_are_all_or_none(pattern: str, names: tuple[str, ...] | None) -> None:
    assert names_of_pattern(pattern, 64) == names


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^[ab]$": ONE}, "additionalProperties": False, "minProperties": 2},
        {**CLOSED, "patternProperties": {"^[ab]$": ONE}, "minProperties": 2},
        {**CLOSED, "patternProperties": {"^[abc]$": ONE}, "minProperties": 2},
        {**CLOSED, "patternProperties": {"^[abc]$": ONE}, "minProperties": 1, "maxProperties": 2},
        {
            **CLOSED,
            "patternProperties": {"^[ab]$": ONE},
            "properties": {"c": ONE},
            "required": ["c"],
            "minProperties": 2,
        },
        {**CLOSED, "properties": {"a": ONE, "b": ONE, "c": ONE}, "minProperties": 2},
        {**CLOSED, "properties": {"a": ONE, "b": ONE, "c": False}, "minProperties": 2},
        {"type": "object", "propertyNames": {"enum": ["b", "a"]}, "minProperties": 2, "maxProperties": 2},
        {"type": "object", "propertyNames": {"enum": ["a", "b", 1]}, "minProperties": 1},
        {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "properties": {"c": ONE}, "minProperties": 2},
        {"type": "object", "propertyNames": {"const": "a"}, "minProperties": 1},
        {"type": "object", "patternProperties": {"^[ab]$": {"const": 2}}},
        {"type": "object", "patternProperties": {"^[ab]$": ONE, "^a": {"type": "integer"}}, "maxProperties": 2},
        {**CLOSED, "patternProperties": {"^[ab]$": {"type": "integer"}, "^a$": ONE}, "properties": {"b": ONE}},
        {
            "type": "object",
            "properties": {"a": ONE},
            "propertyNames": {"enum": ["a", "b"]},
            "additionalProperties": ONE,
        },
        {"allOf": [{"propertyNames": {"enum": ["a", "b"]}}, {"type": "object", "properties": {"c": ONE}}]},
    ],
)
def test_counts_of_few_names_are_in_the_grammar(schema: dict[str, Any]) -> None:
    validator = Draft202012Validator(schema)
    expected = [validator.is_valid(document) for document in DOCUMENTS]
    assert any(expected)
    assert not all(expected)
    assert verdicts(schema, DOCUMENTS) == expected
    assert verdicts(schema, DOCUMENTS, engine="xgrammar") == expected


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer", "says"),
    [
        ({**CLOSED, "patternProperties": {"^a$": ONE}, "minProperties": 2}, "minProperties", "/minProperties", '"a"'),
        ({**CLOSED, "patternProperties": {r"^\d$": ONE}, "minProperties": 11}, "minProperties", "/minProperties",
         '"9"'),
        ({**CLOSED, "properties": {"a": {}, "b": False}, "minProperties": 2}, "minProperties", "/minProperties", '"a"'),
        ({**CLOSED, "minProperties": 1}, "minProperties", "/minProperties", "none"),
        (
            {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 3},
            "minProperties",
            "/minProperties",
            '"x", "y"',
        ),
        ({"type": "object", "propertyNames": False, "minProperties": 1}, "minProperties", "/minProperties", "none"),
        (
            {"type": "object", "required": ["a", "b"], "maxProperties": 1},
            "maxProperties",
            "/maxProperties",
            "2 that are required",
        ),
        (
            {"type": "object", "properties": {"q": {**CLOSED, "patternProperties": {"^a$": {}}, "minProperties": 2}},
             "required": ["q"]},
            "minProperties",
            "/properties/q/minProperties",
            '"a"',
        ),
        (
            {"allOf": [{"type": "object", "minProperties": 2}, {"propertyNames": {"const": "a"}}]},
            "minProperties",
            "/allOf/0/minProperties",
            '"a"',
        ),
        ({**CLOSED, "patternProperties": {"^[ab]$": {**CLOSED, "patternProperties": {"^x$": {}}, "minProperties": 2}},
          "minProperties": 1}, "minProperties", "/minProperties", "none"),
    ],
)  # fmt: skip
def test_more_names_than_there_are_is_refused_by_keyword_and_place(
    schema: dict[str, Any], keyword: str, pointer: str, says: str
) -> None:
    for engine in ("auto", "xgrammar"):
        with pytest.raises(ConstraintError, match="so no value satisfies the schema") as refused:
            compiled(schema, engine=engine)
        assert [(each.keyword, each.pointer) for each in refused.value.refused] == [(keyword, pointer)]
        assert says in str(refused.value)


def test_other_types_may_be_left_where_objects_are_not() -> None:
    schema = {"patternProperties": {"^a$": ONE}, "additionalProperties": False, "minProperties": 2}
    assert verdicts(schema, [{"a": 1}, {}, 5, [1], "a"]) == [False, False, True, True, True]


@settings(deadline=None, max_examples=60)
@given(
    patterns=st.dictionaries(
        st.sampled_from(["^[ab]$", "^a$", "^(?:b|c)$", "^a", "x"]), st.sampled_from([True, ONE, False])
    ),
    declared=st.dictionaries(st.sampled_from("abc"), st.sampled_from([True, ONE, False])),
    names=st.sampled_from([None, {"enum": ["a", "b"]}, {"pattern": "^[bc]$"}, {"maxLength": 1}]),
    rest=st.sampled_from([None, False, True, ONE]),
    least=st.integers(0, 3),
    most=st.sampled_from([None, 1, 2, 3]),
    required=st.lists(st.sampled_from("ab"), unique=True),
)
def test_objects_agree_with_jsonschema(
    patterns: Any, declared: Any, names: Any, rest: Any, least: int, most: Any, required: list[str]
) -> None:
    schema = {"type": "object", "patternProperties": patterns, "properties": declared, "propertyNames": names}
    schema |= {"additionalProperties": rest, "minProperties": least, "maxProperties": most, "required": required}
    schema = {key: value for key, value in schema.items() if value is not None}
    validator = Draft202012Validator(schema)
    expected = [validator.is_valid(document) for document in DOCUMENTS]
    try:
        assert verdicts(schema, DOCUMENTS) == expected
    except ConstraintError:
        assert not any(expected)


def test_an_endless_choice_of_names_is_left_to_counts_of_the_engine() -> None:
    assert choices_of_names({"properties": dict.fromkeys(map(str, range(40)), True), "minProperties": 20}) is None
    schema = {**CLOSED, "patternProperties": {"^x": ONE}, "minProperties": 2}
    assert verdicts(schema, [{"x": 1}, {"x": 1, "xx": 1}]) == [False, True]


def test_a_grammar_offers_no_name_twice() -> None:
    made = compiled({**CLOSED, "patternProperties": {"^[ab]$": ONE}, "minProperties": 2})
    matcher = load(made, OCTETS).start()
    assert matcher.forced() == b'{"a":1,"b":1}'
    assert json.loads(matcher.forced()) == {"a": 1, "b": 1}
