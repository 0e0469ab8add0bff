"""Forced text is emitted in the tokens that the model's own tokenizer gives for it, as far as that is certain."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.matching.constraint_loader import ConstraintLoader
from sapwood.constrained.matching.interface import Edit
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.conftest import ENDLESS, Compilers, llguidance_regex, llguidance_schema

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
        arrays = st.builds(
            lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": 3}, inner, st.integers(0, 3)
        )
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


Models = dict[str, tuple[Vocabulary, ConstraintLoader]]


@pytest.fixture(scope="module")
def models(smollm2: Vocabulary, mistral: Vocabulary) -> Models:
    return {"smollm2": (smollm2, ConstraintLoader(smollm2)), "mistral": (mistral, ConstraintLoader(mistral))}


def follow(completion: Any, vocabulary: Vocabulary, token_ids: list[int]) -> list[Edit]:
    """Drives a completion through `token_ids`: whatever is not forced is chosen as they have it."""
    row = np.zeros(vocabulary.words, np.int32)
    taken: list[int] = []
    edits: list[Edit] = []
    while len(taken) < len(token_ids):
        completion.fill(row)
        next_id = token_ids[len(taken)]
        assert row[next_id // 32] >> next_id % 32 & 1, "a mask must allow the tokenizer's own tokens"
        edits.append(completion.advance(next_id))
        taken += edits[-1].token_ids
        assert taken[: len(token_ids)] == token_ids[: len(taken)]
    return edits


MODELS = ["smollm2", "mistral"]
KIND: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["apple", "apricot"]}, "unit": {"const": "kilogram"}},
    "required": ["kind", "unit"],
    "additionalProperties": False,
}


@settings(max_examples=100, deadline=None)
@given(schema=schemas(), data=st.data(), model=st.sampled_from(MODELS))
def test_forced_tokens_are_those_of_the_whole_text(
    models: Models, schema: Any, data: st.DataObject, model: str
) -> None:
    vocabulary, loader = models[model]
    token_ids = vocabulary.encode(json.dumps(instance(schema, data), ensure_ascii=False, separators=(",", ":")))
    template = loader.load(llguidance_schema(schema))
    follow(template.start(), vocabulary, token_ids)
    edits = follow(template.start(jump_forward=False), vocabulary, token_ids)
    assert all(len(edit.token_ids) == 1 for edit in edits)


def some(items: Any) -> Any:
    return {"type": "array", "items": items, "maxItems": 3}


def one(name: str, value: Any) -> Any:
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (some({"enum": ['"q"']}), ['"q"', '"q"']),  # the end of one item, joined to the next, and alone
        (
            some(some(one("x", {"enum": ["red", "🚲🚴"]}))),
            [[{"x": "🚲🚴"}] * 3],
        ),  # what is joined moves a cut before it
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_forced_tokens_where_the_end_of_forced_text_is_joined(
    models: Models, model: str, schema: Any, value: Any
) -> None:
    vocabulary, loader = models[model]
    token_ids = vocabulary.encode(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    follow(loader.load(llguidance_schema(schema)).start(), vocabulary, token_ids)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_forced_is_not_sampled(models: Models, model: str) -> None:
    vocabulary, loader = models[model]
    token_ids = vocabulary.encode('{"kind":"apricot","unit":"kilogram"}')
    edits = follow(loader.load(llguidance_schema(KIND)).start(), vocabulary, token_ids)
    assert len(edits) == 3, "the start, what apple and apricot begin with, and the choice between them"
    assert edits[-1].complete


def test_both_engines_force_the_same(compilers: Compilers) -> None:
    vocabulary = compilers.vocabulary
    token_ids = vocabulary.encode('{"kind":"apricot","unit":"kilogram"}')
    template = ConstraintLoader(vocabulary).load(compilers.schema(KIND))
    assert [len(edit.token_ids) for edit in follow(template.start(), vocabulary, token_ids)] == [3, 1, 8]


def test_a_sampled_token_gives_way_to_the_tokenizers_own(models: Models) -> None:
    vocabulary, loader = models["smollm2"]
    template = loader.load(llguidance_schema(KIND))
    for first in (b"{", b'{"'):
        edit = template.start().advance(vocabulary.token_bytes.index(first))
        assert edit.token_ids == vocabulary.encode('{"kind":"ap')[: len(edit.token_ids)]
        assert len(edit.token_ids) > 2


@pytest.mark.parametrize(("pattern", "forced"), [("^[a-z]{1,9}$", b'{"name":"'), ("^[a-z]{0,9}$", b'{"name')])
def test_an_end_that_may_join_what_follows_is_left_open(models: Models, pattern: str, forced: bytes) -> None:
    """Where the string may be empty, the tokenizer may cut in front of its first quotation mark and join the two."""
    vocabulary, loader = models["smollm2"]
    name = {"type": "string", "pattern": pattern}
    schema = {"type": "object", "properties": {"name": name}, "required": ["name"], "additionalProperties": False}
    edit = loader.load(llguidance_schema(schema)).start().advance(vocabulary.token_bytes.index(b'{"'))
    assert vocabulary.spell(edit.token_ids) == forced
    assert vocabulary.encode('{"name":""}')[: len(edit.token_ids)] != edit.token_ids or forced == b'{"name'


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("model", MODELS)
def test_no_character_is_cut(models: Models, model: str, seed: int) -> None:
    """Whatever is forced ends with a whole character, even where all ways on share a character's first bytes."""
    vocabulary, loader = models[model]
    pattern = "(é|è|ê){2}(🚲|🚴)数(量|据)(x|ü)🚲{3}"
    completion = loader.load(llguidance_regex(pattern)).start()
    rng = random.Random(seed)
    row = np.zeros(vocabulary.words, np.int32)
    text, forced = b"", 0
    while True:
        completion.fill(row)
        single = [vocabulary.byte_tokens[byte] for byte in vocabulary.first_bytes(row)]  # the hardest way: byte by byte
        edit = completion.advance(rng.choice(single))
        text += vocabulary.spell(edit.token_ids)
        if len(edit.token_ids) > 1:
            text.decode("utf-8")
            forced += len(edit.token_ids) - 1
        if edit.complete:
            break
    assert re.fullmatch(pattern, text.decode("utf-8"))
    assert forced


@pytest.mark.parametrize("limit", [1, 5])
def test_the_number_of_forced_tokens_is_bounded(smollm2: Vocabulary, limit: int) -> None:
    word = "every tokenizer cuts this into a good many tokens " * 20
    token_ids = smollm2.encode(json.dumps(word))
    edits = follow(
        ConstraintLoader(smollm2, limit).load(llguidance_schema({"const": word})).start(), smollm2, token_ids
    )
    assert max(len(edit.token_ids) for edit in edits) == limit + 1


@pytest.mark.timeout(30)
def test_text_without_end_is_forced_in_pieces(compilers: Compilers) -> None:
    """R17: an endless schema runs until the request's own limit."""
    vocabulary = compilers.vocabulary
    completion = ConstraintLoader(vocabulary).load(compilers.schema(ENDLESS)).start()
    token_ids = vocabulary.encode('{"next":' * 200)
    assert len(token_ids) == 600
    edits = follow(completion, vocabulary, token_ids)
    assert not any(edit.complete or edit.failure for edit in edits)
    assert len(edits) < 60
