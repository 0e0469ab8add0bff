"""Whatever a model prefers, a finished object has no name twice, and one that can be finished is."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from sapwood.constrained.matching.constraint_loader import ConstraintLoader
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.deciding import OCTETS, compiled

ONE: dict[str, Any] = {"const": 1}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
PIECES = ['"a"', '"a":', 'a":', '{"', ',"', '":', "ab", "aa", '",', '":1,"', '{"a', '"}', ":1", ":1}", "12", '1,"a":']
TOKENS = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES), b""]
PIECEWISE = Vocabulary(TOKENS, [len(TOKENS) - 1], [], lambda text: list(text.encode()))


def completed(schema: Any, vocabulary: Vocabulary, favourites: str, seed: int, **options: Any) -> str:
    """The text of a completion whose model repeats itself wherever it may. Raises AssertionError where it fails."""
    choose = random.Random(seed)
    constraint = ConstraintLoader(vocabulary).load(compiled(schema, **options)).start(jump_forward=bool(seed % 2))
    token_ids: list[int] = []
    bitmask = np.zeros((len(vocabulary.token_bytes) + 31) // 32, dtype=np.int32)
    for _ in range(3000):
        constraint.fill(bitmask)
        bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
        allowed = [int(token_id) for token_id in np.flatnonzero(bits)]
        liked = [each for each in allowed if set(vocabulary.token_bytes[each]) & set(favourites.encode())]
        edit = constraint.advance(choose.choice(liked if liked and choose.random() < 0.9 else allowed))
        assert not edit.failure
        del token_ids[len(token_ids) - edit.rewind :]
        token_ids += edit.token_ids
        if edit.complete:
            return b"".join(vocabulary.token_bytes[each] for each in token_ids).decode()
    raise AssertionError("it does not end")


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


@pytest.mark.parametrize("vocabulary", [OCTETS, PIECEWISE], ids=["bytes", "pieces"])
@pytest.mark.parametrize(
    "schema",
    [
        {**CLOSED, "patternProperties": {"^[ab]$": ONE}, "minProperties": 2},
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": ONE, "minProperties": 2},
        {**CLOSED, "patternProperties": {"^[abc]$": ONE}, "minProperties": 2},
        {**CLOSED, "patternProperties": {"^[ab]{1,2}$": ONE}, "minProperties": 6, "maxProperties": 6},
        {**CLOSED, "patternProperties": {"^a?[0-9]$": ONE}, "minProperties": 10},
        {**CLOSED, "patternProperties": {"^a": ONE}, "minProperties": 5, "maxProperties": 9},
        {"type": "object", "additionalProperties": ONE, "minProperties": 3, "maxProperties": 12},
        {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": ONE, "maxProperties": 9},
        {"type": "array", "items": {"type": "object", "additionalProperties": ONE, "maxProperties": 4}, "maxItems": 4},
    ],
)
def test_names_come_once_and_the_object_ends(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    validator = Draft202012Validator(schema)
    for seed in range(6):
        text = completed(schema, vocabulary, 'a",', seed)
        validator.validate(json.loads(text, object_pairs_hook=without_repeats))


def test_names_come_once_in_the_other_engine() -> None:
    schema = {**CLOSED, "patternProperties": {"^[ab]$": ONE}, "minProperties": 2}
    for seed in range(3):
        text = completed(schema, OCTETS, 'a",', seed, engine="xgrammar")
        assert json.loads(text, object_pairs_hook=without_repeats) == {"a": 1, "b": 1}
