"""`extra_properties: false`: completions have the properties only that a schema names, wherever it names them."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.constrained.matching.acceptance import accepts
from tests.constrained.deciding import OCTETS, compact, compiled, verdicts

A = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}
MAY_B = {"properties": {"b": {"type": "boolean"}}}
IF_A = {"if": {"properties": {"a": {"const": True}}}}
NODE = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
}
BOTH = {"a": True, "b": True}


def written(schema: Any, document: Any) -> bool:
    """Whether a completion may be this document, its properties in this order."""
    return accepts(compiled(schema, extra_properties=False), OCTETS, compact(document))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [A, B]},
        {**A, "anyOf": [MAY_B, {"properties": {"c": {}}, "required": ["c"]}]},
        {"anyOf": [MAY_B, {"properties": {"a": {}}, "required": ["a"]}]},
        {**A, "oneOf": [B, {"properties": {"a": {"const": False}}, "not": {"required": ["b"]}}]},
        {**A, **IF_A, "then": B},
        {**A, **IF_A, "else": MAY_B},
        {**A, "dependentSchemas": {"a": B}},
        {**A, "$ref": "#/$defs/b", "$defs": {"b": B}},
        {"allOf": [A, {"$ref": "#/$defs/b"}], "$defs": {"b": {"allOf": [B]}}},
        {**A, "allOf": [{"anyOf": [{"oneOf": [B]}, {"required": ["d"]}]}]},
        {"properties": {"a": {}}, "allOf": [{"required": ["b"]}]},
    ],
)
def test_names_come_from_every_schema_that_may_apply_to_an_object(schema: Any) -> None:
    order = BOTH if written(schema, BOTH) else dict(reversed(BOTH.items()))
    assert written(schema, order)
    assert not written(schema, {**order, "x": True})
    assert verdicts(schema, [{**BOTH, "x": True}]) == [True]


def test_alternatives_that_are_whole_objects_have_their_own_names_only() -> None:
    for keyword in ("anyOf", "oneOf"):
        schema = {keyword: [A, {"$ref": "#/$defs/b"}], "$defs": {"b": B}}
        assert [written(schema, each) for each in ({"a": True}, {"b": True}, BOTH)] == [True, True, False]


def test_a_definition_is_closed_where_it_stands_alone_and_open_where_it_is_extended() -> None:
    schema = {
        "$defs": {"node": NODE},
        "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"z": {"type": "integer"}}}],
    }
    assert written(schema, {"a": True, "kids": [{"kids": [{}]}], "z": 1})
    assert not written(schema, {"kids": [{"z": 1}]})
    assert not written(schema, {"kids": [{"kids": [{"x": 1}]}]})
    assert not written(schema, {"x": 1})


def test_objects_inside_are_closed_by_themselves() -> None:
    schema = {"allOf": [{"properties": {"x": {"allOf": [A, MAY_B]}}}, {"properties": {"y": {"type": "integer"}}}]}
    assert written(schema, {"x": BOTH, "y": 1})
    assert not written(schema, {"x": {"a": True, "y": 1}})


def test_properties_of_patterns_stay_possible() -> None:
    patterns = {"patternProperties": {"^p": {"type": "integer"}}}
    for schema in ({**A, **patterns}, {"allOf": [{**A, **patterns}, MAY_B]}, {"allOf": [A, patterns]}):
        assert written(schema, {"a": True, "p1": 1})
        assert not written(schema, {"a": True, "p1": "x"})
        assert not written(schema, {"a": True, "x": 1})


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "additionalProperties": True},
        {"allOf": [A, {"additionalProperties": True}]},
        {"allOf": [A], "unevaluatedProperties": {"type": "integer"}},
        {"allOf": [A, {"propertyNames": {"pattern": "^."}}]},
        {"allOf": [A, {"minProperties": 2}]},
        {"type": "object"},
        {"allOf": [{"type": "object"}, {"minProperties": 1}]},
    ],
)
def test_what_the_schema_itself_says_of_other_properties_holds(schema: Any) -> None:
    assert written(schema, {"a": True, "x": 1})


def test_the_schema_may_forbid_names_that_branches_have() -> None:
    schema = {"allOf": [MAY_B], **A, "additionalProperties": False}
    assert [written(schema, each) for each in ({"a": True}, BOTH)] == [True, False]


def test_a_property_that_is_only_required_is_bounded_as_any_free_value() -> None:
    for schema in ({"type": "object", "required": ["a"]}, {"allOf": [{"type": "object", "required": ["a"]}, MAY_B]}):
        order = [{"a": "x" * size} for size in (1024, 1025)]
        assert [written(schema, each) for each in order] == [True, False]
        assert written(schema, {"a": {"x": [None]}})
        assert not written(schema, {"a": 1, "x": 1})


def test_xgrammar_closes_the_objects_of_which_it_reads_the_properties() -> None:
    free = {"type": "object", "required": ["a"]}
    for schema in (A, {**A, "allOf": [MAY_B]}, free, {**free, "allOf": [{"$ref": "#/$defs/b"}], "$defs": {"b": MAY_B}}):
        made = compiled(schema, extra_properties=False, engine="xgrammar")
        assert accepts(made, OCTETS, '{"a":true}')
        assert not accepts(made, OCTETS, '{"a":true,"x":1}')
    open_ = compiled({**A, "additionalProperties": {"type": "integer"}}, extra_properties=False, engine="xgrammar")
    assert accepts(open_, OCTETS, '{"a":true,"x":1}')
