"""Forced text is emitted in the tokens that the model's own tokenizer gives for it, and only as far as that is certain."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.guide import Edit
from sapwood.constrained.guides import Guides
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.conftest import Compilers, llguidance_regex, llguidance_schema

NAMES = ["name", "a b", "été", "数量", "x", "🚲", "isn't", "user_id", "  ", "\\", '"', "12"]
WORDS = ["red", "green", "apple", "apricot", "é", "è", "ê!", "🚲🚴", "🚲", "New York", " ", "", "it's", '"q"', "\n"]


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Objects with known keys, all of them required and in a fixed order, and all kinds of values."""
    leaf = st.one_of(
        st.just({"type": "string", "maxLength": 12}),
        st.just({"type": "integer"}),
        st.just({"type": "boolean"}),
        st.builds(lambda words: {"enum": words}, st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True)),
        st.builds(lambda word: {"const": word}, st.sampled_from(WORDS)),
    )

    def wrap(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        arrays = st.builds(lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": 3}, inner, st.integers(0, 3))
        objects = st.builds(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        )
        return st.one_of(arrays, objects)

    return draw(st.recursive(leaf, wrap, max_leaves=6))


def instance(schema: Any, data: st.DataObject) -> Any:
    """A value that is valid under one of `schemas`."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return data.draw(st.sampled_from(schema["enum"]))
    if schema["type"] == "object":
        return {name: instance(each, data) for name, each in schema["properties"].items()}
    if schema["type"] == "array":
        size = data.draw(st.integers(schema["minItems"], schema["maxItems"]))
        return [instance(schema["items"], data) for _ in range(size)]
    kinds = {
        "string": st.one_of(st.sampled_from(WORDS), st.text(string.ascii_letters + " ,.:'é", max_size=12)),
        "integer": st.integers(-(10**6), 10**6),
        "boolean": st.booleans(),
    }
    return data.draw(kinds[schema["type"]])


@pytest.fixture(scope="module")
def guides(smollm2: Vocabulary, mistral: Vocabulary) -> dict[str, Guides]:
    return {"smollm2": Guides(smollm2), "mistral": Guides(mistral)}


def follow(guide: Any, vocabulary: Vocabulary, token_ids: list[int]) -> list[Edit]:
    """Drives a guide through `token_ids`: whatever is not forced is chosen as they have it."""
    row = np.zeros(vocabulary.words, np.int32)
    taken: list[int] = []
    edits: list[Edit] = []
    while len(taken) < len(token_ids):
        guide.fill(row)
        next_id = token_ids[len(taken)]
        assert row[next_id // 32] >> next_id % 32 & 1, "a mask must allow the tokenizer's own tokens"
        edits.append(guide.advance(next_id))
        taken += edits[-1].token_ids
        assert taken == token_ids[: len(taken)]
    return edits


@settings(max_examples=150, deadline=None)
@given(schema=schemas(), data=st.data(), model=st.sampled_from(["smollm2", "mistral"]))
def test_forced_tokens_are_those_of_the_whole_text(guides: dict[str, Guides], schema: Any, data: st.DataObject, model: str) -> None:
    text = json.dumps(instance(schema, data), ensure_ascii=False, separators=(",", ":"))
    template = guides[model].load(llguidance_schema(schema))
    vocabulary = template.start()._vocabulary
    follow(template.start(), vocabulary, vocabulary.encode(text))
    follow(template.start(jump_forward=False), vocabulary, vocabulary.encode(text))
