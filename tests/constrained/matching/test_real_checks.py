"""Completions under what no grammar expresses: the real checks find their way."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.constraint_loader import ConstraintLoader
from sapwood.constrained.spec import Constraint
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.matching.test_completion import Completion, wander

# --- with the real checks -------------------------------------------------------------------------------------------

CHECKED: list[Any] = [
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "uniqueItems": True, "minItems": 3, "maxItems": 3},
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b", "c"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 50},
            "ids": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 4},
                "uniqueItems": True,
                "maxItems": 4,
            },
        },
        "required": ["kind", "size"],
        "additionalProperties": False,
        "not": {"properties": {"kind": {"const": "a"}}},
        "if": {"properties": {"kind": {"const": "b"}}},
        "then": {"properties": {"size": {"minimum": 25}}},
    },
    {"type": "integer", "minimum": 0, "maximum": 99, "not": {"multipleOf": 2}},
]


@pytest.mark.parametrize("number", range(len(CHECKED)))
def test_what_no_grammar_expresses_holds(smollm2: Vocabulary, number: int) -> None:
    constraint = Constraint("json_schema", json.dumps(CHECKED[number]), extra_properties=True)
    template = ConstraintLoader(smollm2).load(compile_constraint(constraint, smollm2))
    for seed in range(12):
        completion = Completion(template.start(), smollm2)
        edit = wander(completion, random.Random(seed))
        assert edit.complete, edit.failure
        jsonschema.validate(json.loads(completion.text), CHECKED[number])
