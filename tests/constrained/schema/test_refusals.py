"""Schemas that are refused, and in what words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sapwood.constrained.spec import ConstraintError
from tests.constrained.deciding import OCTETS, compact, compiled, verdicts
from tests.constrained.schema.test_keywords import DRAFT7, HEX, closed, typed


@pytest.mark.parametrize(
    ("schema", "pointer", "meant"),
    [
        ({"type": "integer", "minimun": 9}, "/minimun", "minimum"),
        ({"type": "object", "propertes": {}}, "/propertes", "properties"),
        (closed(a=typed("string", max_length=9)), "/properties/a/max_length", "maxLength"),
        ({"items": {"ref": "#"}}, "/items/ref", "$ref"),
        ({"anyof": [{"type": "null"}]}, "/anyof", "anyOf"),
        (typed("string", format="datetime"), "/format", "date-time"),
        (closed(a=typed("string", format="emial")), "/properties/a/format", "email"),
    ],
)
def test_what_is_nearly_a_keyword_or_format_is_refused(schema: Any, pointer: str, meant: str) -> None:
    with pytest.raises(ConstraintError, match=f"at {pointer}: .*; did you mean '{re.escape(meant)}'\\?") as error:
        compiled(schema)
    assert error.value.refused[0].pointer == pointer
    made = compiled(schema, strict=False)
    assert [each.pointer for each in made.relaxed] == [pointer]
    assert f"did you mean {meant!r}?" in made.relaxed[0].reason


@pytest.mark.parametrize(
    "name", ["x-minimum", "$minimum", "_format", "example", "enumNames", "note", "nullable", "xml"]
)
def test_annotations_are_not_taken_for_misspelt_keywords(name: str) -> None:
    assert [each.keyword for each in compiled({"type": "string", name: "x"}).relaxed] == [name]


@pytest.mark.parametrize("name", ["uuid4", "int32", "url", "binary", "ipv4network", "date-range", "x-date"])
def test_other_formats_are_not_taken_for_misspelt_ones(name: str) -> None:
    assert [each.keyword for each in compiled({"type": "string", "format": name}).relaxed] == ["format"]


def test_xgrammar_alone_drops_lengths_beside_a_pattern() -> None:
    """Row R15, the measurement: this is why its grammars are not trusted with what the schema check does not know."""
    import xgrammar

    compiler = xgrammar.GrammarCompiler(OCTETS.xgrammar_info, max_threads=1, cache_enabled=False)
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(HEX), any_whitespace=False))
    assert matcher.accept_string(compact("0123456789"))
    assert matcher.is_completed()


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"type": "text"}, "type", "/type"),
        ({"properties": {"a": {"required": True}}}, "required", "/properties/a/required"),
        ({"minimum": "3"}, "minimum", "/minimum"),
        ({"exclusiveMinimum": True, "$schema": DRAFT7, "minimum": 1}, "exclusiveMinimum", "/exclusiveMinimum"),
        ({"multipleOf": 0}, "multipleOf", "/multipleOf"),
        ({"minLength": -1}, "minLength", "/minLength"),
        ({"anyOf": []}, "anyOf", "/anyOf"),
        ({"items": [{}], "$schema": "https://json-schema.org/draft/2020-12/schema"}, "items", "/items"),
        ({"properties": {"a/b": {"type": "string", "pattern": "("}}}, "pattern", "/properties/a~1b/pattern"),
        ({"properties": {"a": 5}}, "a", "/properties/a"),
        ({"items": {"$ref": "#/$defs/none"}}, "$ref", "/items/$ref"),
        ({"items": {"$ref": "https://x.test/other.json"}}, "$ref", "/items/$ref"),
        ({"$ref": "#"}, "$ref", "/$ref"),
        (
            {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "$ref",
            None,
        ),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", ""),
        ({"type": "string", "pattern": "^(?=(a+)+$)"}, "pattern", "/pattern"),
    ],
)
def test_a_refusal_names_keyword_and_pointer(schema: Any, keyword: str, pointer: str | None) -> None:
    with pytest.raises(ConstraintError, match=r"\w") as error:
        compiled(schema)
    assert error.value.refused[0].keyword == keyword
    assert pointer is None or error.value.refused[0].pointer == pointer
    assert keyword in str(error.value)


def test_without_strict_what_cannot_be_enforced_is_relaxed_and_said() -> None:
    schema = {"type": "array", "items": {"$ref": "https://x.test/other.json"}, "maxItems": 1}
    made = compiled(schema, strict=False)
    assert [(each.keyword, each.pointer) for each in made.relaxed] == [("$ref", "/items/$ref")]
    assert verdicts(schema, [["anything"], [1, 2]], strict=False) == [True, False]


@pytest.mark.parametrize(
    "schema", [False, {"allOf": [False]}, {"enum": []}, {"type": "integer", "minimum": 2, "maximum": 1}]
)
def test_a_schema_without_any_value_is_refused(schema: Any) -> None:
    with pytest.raises(ConstraintError, match=r"no value|allows no"):
        compiled(schema)
