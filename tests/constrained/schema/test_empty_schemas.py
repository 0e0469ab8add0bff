"""Schemas that no finite value satisfies are refused by keyword and place; those that have one are not."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.constrained.schema.empty import refuse_empty
from sapwood.constrained.schema.normalise import normalise
from sapwood.constrained.schema.validation import Validation
from sapwood.constrained.spec import ConstraintError
from tests.constrained.deciding import compiled
from tests.constrained.schema.test_keywords import ROWS


def having(part: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": part}, "required": ["a"], **more}


NEVER = {"enum": []}
CYCLE = {
    "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
    "b": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "minItems": 1},
}


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        (having({"type": "integer", "minimum": 5, "maximum": 1}), "minimum", "/properties/a/minimum"),
        (having({"type": "integer", "exclusiveMinimum": 1, "maximum": 1.5}), "exclusiveMinimum", None),
        (having({"type": "number", "minimum": 1, "exclusiveMaximum": 1}), "minimum", None),
        ({"allOf": [{"type": "number", "minimum": 3}, {"maximum": 2}]}, "minimum", "/allOf/0/minimum"),
        (having({"type": "string", "minLength": 3, "maxLength": 2}), "minLength", "/properties/a/minLength"),
        (having({"type": "array", "minItems": 3, "maxItems": 2}), "minItems", "/properties/a/minItems"),
        (
            having({"minProperties": 3, "maxProperties": 2}, required=["a"]) | {"type": "string", "enum": []},
            "enum",
            "/enum",
        ),
        (having(NEVER), "enum", "/properties/a/enum"),
        (having({"type": "string", "enum": [1]}), "enum", "/properties/a/enum"),
        (having({"type": "string", "const": "abc", "maxLength": 2}), "const", "/properties/a/const"),
        (having({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": NEVER}}), "enum", "/$defs/a~1b/enum"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "required", "/required"),
        (having({"type": "string"}, allOf=[{"properties": {"a": {"type": "integer"}}}]), "required", "/required"),
        ({"type": "array", "contains": NEVER}, "enum", "/contains/enum"),
        ({"type": "array", "prefixItems": [{}, NEVER], "minItems": 2}, "enum", "/prefixItems/1/enum"),
        ({"oneOf": [NEVER, {"allOf": [{"type": "string"}, {"type": "null"}]}]}, "enum", "/oneOf/0/enum"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "type", None),
        ({"not": {}}, "not", "/not"),
    ],
)
def test_a_contradiction_is_named(schema: Any, keyword: str, pointer: str | None) -> None:
    with pytest.raises(ConstraintError, match=f"^{keyword} at /.*no value satisfies the schema") as error:
        compiled(schema)
    assert error.value.refused[0].keyword == keyword
    assert pointer is None or error.value.refused[0].pointer == pointer


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (having({"$ref": "#"}), "required at /required"),
        (having({"allOf": [{"$ref": "#"}]}), "required at /required"),
        ({"$ref": "#/$defs/a", "$defs": CYCLE}, "required at /$defs/a/required"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "minItems at /minItems"),
        (having({"anyOf": [{"$ref": "#"}, NEVER]}), "required at /required"),
    ],
)
def test_what_needs_itself_inside_has_no_finite_value(schema: Any, place: str) -> None:
    with pytest.raises(ConstraintError, match="without an end, so no finite value") as error:
        compiled(schema)
    assert str(error.value).startswith(place)


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 5, "maximum": 1},
        {"type": ["integer", "string"], "minimum": 5, "maximum": 1},
        {"type": "number", "minimum": 1.5, "maximum": 1.5},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        having({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        having({"anyOf": [NEVER, {"type": "null"}]}),
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "items": NEVER},
        having({"type": "number"}, allOf=[{"properties": {"a": {"type": "integer"}}}]),
        {"type": "array", "contains": NEVER, "minContains": 0},
        {"type": "object", "required": ["xa"], "patternProperties": {"^x": {}}, "additionalProperties": False},
    ],
)
def test_what_has_a_value_passes(schema: Any) -> None:
    compiled(schema)


def test_a_long_chain_of_references_is_decided_soon() -> None:
    chain = {str(i): having({"$ref": f"#/$defs/{i + 1}"}) for i in range(3000)}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "3000": {"type": "null"}}}
    normal = normalise(schema)
    refuse_empty(normal, Validation(normal.schema))
    normal = normalise({**schema, "$defs": {**chain, "3000": NEVER}})
    with pytest.raises(ConstraintError, match="enum at /\\$defs/3000/enum"):
        refuse_empty(normal, Validation(normal.schema))


@pytest.mark.parametrize("name", ROWS)
def test_no_schema_that_accepts_something_is_called_empty(name: str) -> None:
    normal = normalise(ROWS[name].schema)
    refuse_empty(normal, Validation(normal.schema, normal.draft))
