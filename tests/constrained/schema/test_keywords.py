"""Every keyword, and combinations that servers drop: valid documents pass, invalid ones do not, on both engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.constrained.deciding import compiled, leaves_to_checks, verdicts

DRAFT4 = "http://json-schema.org/draft-04/schema#"


DRAFT7 = "http://json-schema.org/draft-07/schema#"


TREE = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}},
            "required": ["v"],
        }
    },
}


HEX = {"type": "string", "pattern": "^[0-9a-f]*$", "minLength": 2, "maxLength": 4}


@dataclass
class Row:
    """A schema with documents. by_checks: whether llguidance's grammar leaves part of it to checks."""

    schema: Any
    valid: list[Any]
    invalid: list[Any]
    by_checks: bool = False


def typed(kind: str, **keywords: Any) -> dict[str, Any]:
    return {"type": kind, **keywords}


def closed(**properties: Any) -> dict[str, Any]:
    return typed("object", properties=properties, additionalProperties=False)


ROWS = {
    "type": Row({"type": "integer"}, [0, -3], [1.5, "1", True, None]),
    "integer in draft 4": Row(
        {"$schema": DRAFT4, "type": "object", "properties": {"a": {"type": "integer"}}}, [{"a": 1}], [{"a": 1.0}]
    ),
    "integer": Row({"type": "object", "properties": {"a": {"type": "integer"}}}, [{"a": 1}, {"a": 1.0}], [{"a": 1.5}]),
    "type list": Row({"type": ["string", "null"]}, ["", None], [0, [], {}]),
    "const": Row({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, {"a": [1, "y"]}]),
    "enum": Row({"enum": [1, "a", None, [2]]}, [1, "a", None, [2]], [2, "b", True, []]),
    "enum under type": Row({"type": "string", "enum": [1, "a"]}, ["a"], [1]),
    "enum under not": Row({"enum": ["a", "b"], "not": {"const": "b"}}, ["a"], ["b"]),
    "properties": Row(closed(a={"type": "integer"}), [{}, {"a": 1}], [{"a": "1"}, {"b": 1}]),
    "untyped properties": Row({"properties": {"a": {"type": "integer"}}}, [{"a": 1}, "x", {"b": 2}], [{"a": "x"}]),
    "required": Row(typed("object", required=["a"]), [{"a": 1}, {"a": None, "b": 1}], [{}, {"b": 1}]),
    "additionalProperties": Row(
        typed("object", properties={"a": {}}, additionalProperties={"type": "integer"}),
        [{"a": "x"}, {"a": 1, "b": 2}, {"b": 2}],
        [{"b": "x"}, {"a": 1, "b": None}],
    ),
    "declared is not additional": Row(
        typed("object", properties={"a": {"type": "integer"}}, additionalProperties={"type": "string"}),
        [{"a": 1, "b": "x"}],
        [{"a": "x"}, {"b": "y", "a": "x"}],
    ),
    "patternProperties": Row(
        typed("object", patternProperties={"^x": {"type": "integer"}}, additionalProperties=False),
        [{}, {"x1": 1, "xy": 2}],
        [{"x1": "1"}, {"a": 1}],
    ),
    "patternProperties that overlap": Row(
        {"patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 5}}},
        [{"a": 1, "b": 7, "ab": 6}],
        [{"ab": 1}, {"ab": "x"}],
        by_checks=True,
    ),
    "patternProperties with look-ahead": Row(
        typed("object", patternProperties={"^(?!__)[a-z_]+$": {"type": "integer"}}, properties={"A": {}})
        | {"additionalProperties": False},
        [{"a": 1, "b_": 2}, {"A": "x"}, {}],
        [{"__a": 1}, {"a": "x"}, {"B": 1}, {"a": 1, "__": 2}],
        by_checks=True,
    ),
    "propertyNames": Row({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, {"a\n": 1}, 5], [{"abc": 1}]),
    "propertyNames of a list": Row(
        typed("object", propertyNames={"enum": ["a.b", "c"]}, properties={"c": {"type": "integer"}, "d": {}}),
        [{"a.b": "x", "c": 1}],
        [{"axb": 1}, {"c": "x"}, {"d": 1}],
    ),
    "propertyNames by a pattern": Row(
        typed("object", propertyNames={"pattern": "^x"}, additionalProperties={"type": "integer"}, required=["x1"]),
        [{"x1": 1, "x2": 2}],
        [{"x2": 1}, {"x1": "1"}, {"x1": 1, "a": 1}],
    ),
    "propertyNames that no pattern says": Row(
        {"propertyNames": {"not": {"const": "a"}}}, [{"b": 1}], [{"a": 1}, {"b": 1, "a": 2}], by_checks=True
    ),
    "minProperties": Row(typed("object", minProperties=2), [{"a": 1, "b": 2}], [{}, {"a": 1}]),
    "maxProperties": Row(typed("object", maxProperties=1), [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    "dependentRequired": Row(
        closed(a={}, b={}) | {"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]
    ),
    "dependentSchemas": Row(
        closed(a={}, b={"type": "integer"}) | {"dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
        [{"b": 1}, {"a": 1, "b": 5}],
        [{"a": 1, "b": 1}],
    ),
    "dependencies": Row({"$schema": DRAFT7, "dependencies": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    "items": Row(typed("array", items={"type": "integer"}), [[], [1, 2]], [["a"], [1, None]]),
    "prefixItems": Row(
        typed("array", prefixItems=[{"type": "integer"}], items={"type": "string"}),
        [[], [1], [1, "a"]],
        [["a"], [1, 2]],
    ),
    "items as a list": Row(
        {"$schema": DRAFT7, "type": "array", "items": [{"type": "integer"}], "additionalItems": False},
        [[1]],
        [["a"], [1, 2]],
    ),
    "minItems and maxItems": Row(typed("array", minItems=1, maxItems=2), [[1], [1, 2]], [[], [1, 2, 3]]),
    "many items": Row(typed("array", maxItems=1001), [[1]], [[0] * 1002], by_checks=True),
    "uniqueItems": Row(typed("array", uniqueItems=True), [[], [1, "1", True]], [[1, 2, 1], [1, 1.0]], by_checks=True),
    "contains": Row({"contains": {"type": "integer"}}, [[1], ["a", 2]], [[], ["a"]], by_checks=True),
    "minContains and maxContains": Row(
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1], [1, 2, 1, 1]],
        [[1], [1] * 4],
        by_checks=True,
    ),
    "minLength and maxLength": Row(typed("string", minLength=2, maxLength=3), ["ab", "é🚲"], ["a", "🚲", "abcd"]),
    "pattern": Row(typed("string", pattern="[0-9]b"), ["0b", "xx1bx"], ["b", "0 b"]),
    "pattern of alternatives": Row(typed("string", pattern="^a|b$"), ["ax", "xb"], ["xa", "bx"]),
    "pattern with lengths": Row(HEX, ["ab", "0123"], ["a", "01234", "xy"]),
    "pattern with look-around": Row(
        typed("string", pattern="^(?!ab)[a-z]+$"), ["ba", "a"], ["ab", "abc", ""], by_checks=True
    ),
    "format": Row(typed("string", format="date"), ["2024-02-29"], ["2023-02-29", "2024-2-1", "x"]),
    "format with pattern": Row(typed("string", format="date", pattern="^2024"), ["2024-01-01"], ["2023-01-01", "2024"]),
    "format regex": Row(typed("string", format="regex"), ["^a+$"], ["(", "a{2,1}"], by_checks=True),
    "unknown format": Row(typed("string", format="slug"), ["a b"], [1]),
    "minimum and maximum": Row(typed("number", minimum=1, maximum=2.5), [1, 2.5, 1.75], [0.99, 2.51]),
    "exclusive bounds": Row(typed("number", exclusiveMinimum=1, exclusiveMaximum=2), [1.5, 1.0000001], [1, 2]),
    "exclusiveMinimum as a boolean": Row(
        {"$schema": DRAFT4, "type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]
    ),
    "integer bounds": Row(typed("integer", minimum=-5, maximum=120), [-5, 0, 120], [-6, 121]),
    "integer between fractions": Row(typed("integer", minimum=0.5, maximum=2.5), [1, 2], [0, 3]),
    "int64": Row(typed("integer", minimum=-(2**63), maximum=2**63 - 1), [0, 10**18], ["0"]),
    "multipleOf": Row(typed("integer", multipleOf=3), [0, 3, -9], [1, 4]),
    "multipleOf a fraction": Row(typed("number", multipleOf=0.1), [0.1, 0.5, 2], [0.25, 0.3], by_checks=True),
    "a constant that doubles cannot hold": Row({"const": 2**53 + 1}, [2**53 + 1], [2**53, 2**53 + 2], by_checks=True),
    "allOf": Row({"allOf": [typed("integer"), {"minimum": 3}]}, [3], [2, 3.5, "x"]),
    "allOf of objects": Row(
        {
            "allOf": [
                typed("object", properties={"a": {"type": "integer"}}, required=["a"]),
                {"properties": {"a": {"minimum": 5}}},
            ]
        },
        [{"a": 5}],
        [{"a": 4}, {}],
    ),
    "anyOf": Row({"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]}, [1, "ab"], ["a", None]),
    "anyOf with siblings": Row(
        {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 3}]}, ["a", "abc"], ["ab", 1]
    ),
    "anyOf over what is checked": Row(
        {"anyOf": [typed("array", uniqueItems=True), {"type": "integer"}]}, [[1, 2], 1], [[1, 1]], by_checks=True
    ),
    "oneOf of types": Row({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    "oneOf by a tag": Row(
        {
            "oneOf": [
                typed("object", properties={"k": {"const": c}, c: {"type": "integer"}}, required=["k", c]) for c in "ab"
            ]
        },
        [{"k": "a", "a": 1}, {"k": "b", "b": 1}],
        [{"k": "a"}, {"k": "c", "a": 1}, {"k": "b", "a": 1}],
    ),
    "oneOf by presence": Row(
        closed(a={}, b={}) | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 2}],
    ),
    "oneOf that overlaps": Row(
        {"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 3}]},
        [2, 3, 4],
        [6, 12, 5],
        by_checks=True,
    ),
    "not": Row({"not": {"type": "string", "minLength": 2}}, [1, "a"], ["ab"], by_checks=True),
    "not a type": Row({"not": {"type": ["string", "null"]}}, [1, [], {}], ["", None]),
    "not required": Row(
        closed(a={}, b={}) | {"not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]
    ),
    "if": Row(
        {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}}, ["ab", 1], ["a", None, 1.5]
    ),
    "if a property": Row(
        typed("object", properties={"k": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, required=["k"])
        | {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}},
        [{"k": "a", "n": 1}, {"k": "b"}],
        [{"k": "a"}, {"k": "c"}],
    ),
    "if what cannot be negated": Row(
        typed("string") | {"if": {"pattern": "^a"}, "then": {"pattern": "z$"}}, ["az", "b"], ["ab"], by_checks=True
    ),
    "$ref": Row({"$defs": {"a": {"type": "integer"}}, "items": {"$ref": "#/$defs/a"}}, [[1]], [["x"]]),
    "$ref with siblings": Row({"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": 3}, [3], [2, "x"]),
    "$ref in draft 7": Row(
        {
            "$schema": DRAFT7,
            "definitions": {"a": {"type": "integer"}},
            "items": {"$ref": "#/definitions/a", "minimum": 3},
        },
        [[2]],
        [["x"]],
    ),
    "$ref by anchor": Row(
        {"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "items": {"$ref": "#x"}}, [[1]], [["a"]]
    ),
    "$ref by $id": Row(
        {"$id": "https://x.test/s", "$defs": {"a": {"$id": "t", "type": "integer"}}, "items": {"$ref": "t"}},
        [[1]],
        [["a"]],
    ),
    "$ref to a pointer with escapes": Row(
        {"$defs": {"a/b~c d": {"type": "integer"}}, "items": {"$ref": "#/$defs/a~1b~0c%20d"}}, [[1]], [["a"]]
    ),
    "$ref to a metaschema": Row({"$ref": DRAFT7}, [{"type": "object"}, True], [{"type": 1}, 5], by_checks=True),
    "tree": Row(TREE, [{"v": 1}, {"v": 1, "next": {"v": 2}}], [{}, {"v": 1, "next": {}}]),
    "$dynamicRef": Row(
        {
            "$dynamicAnchor": "n",
            "type": "object",
            "properties": {"c": {"$dynamicRef": "#n"}},
            "additionalProperties": False,
        },
        [{"c": {"c": {}}}],
        [{"c": {"c": {"d": 1}}}],
    ),
    "unevaluatedProperties": Row(
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        [{"a": 1}, 3],
        [{"b": 1}, {"a": 1, "b": 1}],
    ),
    "unevaluatedProperties after anyOf": Row(
        {"anyOf": [typed("object", properties={"a": {}}, required=["a"]), {"properties": {"b": {}}, "required": ["b"]}]}
        | {"unevaluatedProperties": False},
        [{"a": 1, "b": 1}, {"b": 1}, {"a": 1}],
        [{"a": 1, "c": 1}, {}],
        by_checks=True,
    ),
    "unevaluatedProperties with a schema": Row(
        {"properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}},
        [{"a": "x", "b": 1}],
        [{"a": 1, "b": "x"}],
        by_checks=True,
    ),
    "unevaluatedItems": Row({"prefixItems": [{}], "unevaluatedItems": False}, [[1]], [[1, 2]], by_checks=True),
    "false somewhere": Row(typed("object", properties={"a": False, "b": {}}), [{"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]),
    "a definition without any value": Row(
        {"properties": {"a": {"$ref": "#/$defs/p"}, "b": {"anyOf": [{"$ref": "#/$defs/q"}, {"type": "null"}]}}}
        | {
            "$defs": {
                "p": False,
                "q": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/p"}}},
            }
        },
        [{}, {"b": None}],
        [{"a": 1}, {"b": {"x": 1}}],
    ),
    "anything": Row(True, [1, "a", [1, {"b": None}], {}], []),
}


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("name", ROWS)
def test_a_keyword_is_enforced(name: str, engine: str) -> None:
    row = ROWS[name]
    assert verdicts(row.schema, row.valid, engine=engine) == [True] * len(row.valid)
    assert verdicts(row.schema, row.invalid, engine=engine) == [False] * len(row.invalid)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_grammar_can_say_is_not_left_to_checks(name: str) -> None:
    """Checks hold back text and take back tokens; a grammar does neither."""
    assert leaves_to_checks(compiled(ROWS[name].schema)) == ROWS[name].by_checks


def test_an_escaped_character_counts_as_one() -> None:
    assert verdicts(typed("string", minLength=2, maxLength=2), ["a\n", '""', "\t\u0001", "\n"]) == [
        True,
        True,
        True,
        False,
    ]


def test_the_keywords_that_are_enforced_are_named() -> None:
    assert compiled(ROWS["dependencies"].schema).enforced == ["dependencies"]
    assert compiled(ROWS["pattern with lengths"].schema).enforced == ["maxLength", "minLength", "pattern", "type"]


def test_annotations_are_reported_and_not_refused() -> None:
    made = compiled(closed(a=typed("string", format="slug"), b={"nullable": True}))
    assert [(each.keyword, each.pointer) for each in made.relaxed] == [
        ("format", "/properties/a/format"),
        ("nullable", "/properties/b/nullable"),
    ]
    assert "format" not in made.enforced
