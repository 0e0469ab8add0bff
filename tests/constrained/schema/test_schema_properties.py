"""Made-up schemas and documents, with jsonschema as the judge: no invalid document is ever accepted."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.acceptance import accepts_document
from sapwood.constrained.spec import Compiled, Constraint, ConstraintError
from tests.constrained.deciding import OCTETS, compact, constraint_of

NAMES = st.sampled_from(["a", "b", "c", "x1"])
SCALARS = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        5,
        -1,
        1.5,
        2.5,
        10,
        0.1,
        "",
        "a",
        "ab",
        "abc",
        "a1",
        "2024-02-29",
        "2023-02-29",
        "é",
    ]
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
PATTERNS = st.sampled_from(["^a", "b$", "^[a-z]*$", "[0-9]", "^(a|b)+$", "^(?!a)", "."])
BOUNDS = st.sampled_from([0, 1, -1, 2.5, 3, 10])
COUNTS = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A schema of a few keywords with other schemas in them."""
    parts = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    optional = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(DOCUMENTS, min_size=1, max_size=3),
        "const": DOCUMENTS,
        **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], BOUNDS),
        "multipleOf": st.sampled_from([1, 2, 0.5, 3, 0.1]),
        **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"], COUNTS),
        "pattern": PATTERNS,
        "format": st.sampled_from(["date", "ipv4", "slug"]),
        **dict.fromkeys(["items", "additionalProperties", "contains", "not", "if", "then", "else"], inner),
        **dict.fromkeys(["unevaluatedItems", "unevaluatedProperties"], inner),
        **dict.fromkeys(["prefixItems", "anyOf", "oneOf", "allOf"], parts),
        "uniqueItems": st.booleans(),
        "minContains": COUNTS,
        "properties": named,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "patternProperties": st.dictionaries(PATTERNS, inner, min_size=1, max_size=2),
        "propertyNames": st.sampled_from([{"pattern": "^[ab]"}, {"maxLength": 1}, {"enum": ["a", "b"]}]),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), min_size=1, max_size=1),
        "dependentSchemas": st.dictionaries(NAMES, inner, min_size=1, max_size=1),
        "$ref": st.sampled_from(["#/$defs/p", "#/$defs/q"]),
    }
    some = st.lists(st.sampled_from(sorted(optional)), min_size=1, max_size=4, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: optional[name] for name in names}))


SCHEMAS = st.recursive(st.booleans() | st.just({}) | TYPES.map(lambda name: {"type": name}), keywords, max_leaves=6)


def attempt(constraint: Constraint) -> tuple[Compiled | None, str]:
    """What it compiles to, or why it is refused."""
    try:
        return compile_constraint(constraint, OCTETS), ""
    except ConstraintError as error:
        return None, str(error)


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(schema=keywords(SCHEMAS), p=SCHEMAS, q=SCHEMAS, documents=st.lists(DOCUMENTS, min_size=1, max_size=8))
def test_accepted_means_valid_and_valid_means_accepted(schema: Any, p: Any, q: Any, documents: list[Any]) -> None:
    schema = {**schema, "$defs": {"p": p, "q": q}}
    judge = Draft202012Validator(schema, format_checker=FormatChecker())
    constraint = constraint_of(schema)
    made, refused = attempt(constraint)
    if made is None:
        assert "itself" in refused or not any(judge.is_valid(document) for document in documents), refused
        return
    for document in documents:
        valid = judge.is_valid(document)
        assert accepts_document(constraint, made, OCTETS, compact(document)) == valid, (json.dumps(schema), document)
