"""Parameters one by one: which are text, which JSON, and what such a way of writing cannot keep to."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from sapwood.runtime.text.chat.tools.known_formats import QWEN3_CODER
from sapwood.runtime.text.chat.tools.tool_constraint import BeyondFormat, tool_calls_constraint
from sapwood.runtime.text.chat.tools.tool_parameters import read_parameters, reading

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("schema", "how"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "pattern": "^a+$", "description": "x"}, "text"),
        ({"enum": ["a", "b"]}, "text"),
        ({"const": "a"}, "text"),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["long one"]}]}, "text"),
        ({"$ref": "#/$defs/name"}, "text"),
        ({"allOf": [{"$ref": "#/$defs/name"}], "default": "x"}, "text"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "either"),
        ({"type": ["string", "null"]}, "either"),
        ({"type": ["string", "integer"]}, "either"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "either"),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}, "json"),
        ({"enum": ["a", 1]}, "json"),
        ({"type": "integer"}, "json"),
        ({"type": "object"}, "json"),
        ({}, "json"),
        (True, "json"),
        ({"not": {"type": "string"}}, "json"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "json"),
        ({"$ref": "#/$defs/gone"}, "json"),
        ({"$ref": "#"}, "json"),
    ],
)
def test_how_a_parameter_is_written_and_read(schema: Any, how: str) -> None:
    root = {"type": "object", "properties": {"p": schema}, "$defs": {"name": {"type": "string"}}}
    assert reading(read_parameters(root).kinds["p"], quoted=False, tells_apart=False) == how
    assert reading(read_parameters(root).kinds["p"], quoted=True, tells_apart=False) == "json"


def test_a_parameter_that_refers_to_the_whole_schema_stands_alone() -> None:
    root = {
        "type": "object",
        "properties": {
            "tree": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            "same": {"$ref": "#/properties/tree"},
        },
        "$defs": {
            "node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
        },
    }
    kinds = read_parameters(root).kinds
    for name in ("tree", "same"):
        check = jsonschema.Draft202012Validator(kinds[name].schema)
        assert check.is_valid([{"kids": [{"kids": []}]}])
        assert not check.is_valid([{"kids": [{"kids": [1]}]}])


def test_what_is_required_comes_named_or_not() -> None:
    read = read_parameters({"properties": {"a": {"type": "string"}}, "required": ["b", "a"]})
    assert (list(read.kinds), read.required) == (["a", "b"], {"a", "b"})
    assert read_parameters(None).kinds == read_parameters({"type": "object"}).kinds == {}


@pytest.mark.parametrize("keyword", ["anyOf", "if", "not", "dependentRequired", "minProperties"])
def test_what_such_arguments_cannot_keep_to_is_refused_unless_it_may_pass(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, keyword: {"x": []}}
    tools = [
        {"type": "function", "function": {"name": "ok"}},
        {"type": "function", "function": {"name": "f", "parameters": schema}},
    ]
    with pytest.raises(BeyondFormat, match=keyword) as caught:
        tool_calls_constraint(QWEN3_CODER, tools, None, required=False, parallel=True)
    assert caught.value.index == 1
    loose = tool_calls_constraint(QWEN3_CODER, tools, None, required=False, parallel=True, strict=False)
    assert [each["key"] for each in loose["calls"][1]["fields"]] == ["a"]
    assert [note[:2] for note in loose["notes"]] == [[keyword, f"/{keyword}"]]
    assert len(tool_calls_constraint(QWEN3_CODER, tools, ["ok"], required=False, parallel=True)["calls"]) == 1
