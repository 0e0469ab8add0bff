"""Constrained completions: whole ones that are valid, and the search for another way where a value fails its check."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.engines.registry import load
from sapwood.constrained.matching.backtracking import MAX_TRIES
from sapwood.constrained.matching.completion import ConstrainedCompletion
from sapwood.constrained.matching.constraint_loader import ConstraintLoader
from sapwood.constrained.matching.interface import Edit, TokenConstraint
from sapwood.constrained.spec import Compiled
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.conftest import Compilers, llguidance_regex, llguidance_schema

SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["apple", "apricot", "é", "è", None, 12]},
            "tags": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 120}, "maxItems": 3},
            "more": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "additionalProperties": False},
        },
        "required": ["name", "kind", "tags"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "string", "pattern": "^[a-f]{2,4}(-[0-9]{2})?$"}, "minItems": 2, "maxItems": 3},
    {
        "anyOf": [
            {"type": "boolean"},
            {"const": {"a": [1, "zwei", {"drei": 3}]}},
            {"type": "integer", "minimum": 0, "maximum": 9},
        ]
    },
]


@dataclass
class Completion:
    """What a worker keeps of a row: it follows the edits to the letter."""

    constraint: TokenConstraint
    vocabulary: Vocabulary
    token_ids: list[int] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    shown: int = 0

    def mask(self) -> np.ndarray:
        row = np.full(self.vocabulary.words, -1, np.int32)
        self.constraint.fill(row)
        assert row.any()
        return row

    def take(self, token_id: int) -> Edit:
        edit = self.constraint.advance(token_id)
        self.edits.append(edit)
        assert edit.rewind <= len(self.token_ids) - self.shown, "what was shown is final"
        del self.token_ids[len(self.token_ids) - edit.rewind :]
        self.token_ids += edit.token_ids
        if not edit.failure:
            assert 0 <= edit.held <= len(self.token_ids)
            self.shown = max(self.shown, len(self.token_ids) - edit.held)
        return edit

    @property
    def data(self) -> bytes:
        return self.vocabulary.spell(self.token_ids)

    @property
    def text(self) -> str:
        return self.data.decode("utf-8")


def ids_in(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@cache
def closing(vocabulary: Vocabulary) -> np.ndarray:
    """The bitmask of tokens that may close something."""
    return vocabulary.bits(i for i, data in enumerate(vocabulary.token_bytes) if set(data) & set(b'"]},'))


def wander(completion: Completion, rng: random.Random, max_tokens: int = 400) -> Edit:
    """Takes random tokens, the ends of values a little more often, until the completion is over or has failed."""
    for _ in range(max_tokens):
        mask = completion.mask()
        token_ids = ids_in(mask & closing(completion.vocabulary)) if rng.random() < 0.3 else []
        edit = completion.take(rng.choice(token_ids or ids_in(mask)))
        if edit.complete or edit.failure:
            return edit
    pytest.fail(f"no end after {max_tokens} tokens: {completion.text}")


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_every_completion_is_valid(compilers: Compilers, number: int, jump_forward: bool) -> None:
    vocabulary = compilers.vocabulary
    template = ConstraintLoader(vocabulary).load(compilers.schema(SCHEMAS[number]))
    for seed in range(25):
        completion = Completion(template.start(jump_forward=jump_forward), vocabulary)
        edit = wander(completion, random.Random(seed))
        assert edit.complete, edit.failure
        # xgrammar lets control characters into strings, which `compiler` does not use it for.
        jsonschema.validate(json.loads(completion.text, strict=False), SCHEMAS[number])


def test_jump_forward_allows_nothing_else(compilers: Compilers) -> None:
    """Whatever comes out with it could have come without, and the other way round, up to how text is cut."""
    vocabulary = compilers.vocabulary
    template = ConstraintLoader(vocabulary).load(compilers.schema(SCHEMAS[0]))
    for seed, jump_forward in enumerate([True, False] * 4):
        first = Completion(template.start(jump_forward=jump_forward), vocabulary)
        wander(first, random.Random(seed))
        second = Completion(template.start(jump_forward=not jump_forward), vocabulary)
        while not (second.edits and second.edits[-1].complete):
            assert first.data.startswith(second.data)
            byte = first.data[len(second.data)]
            assert byte in vocabulary.first_bytes(second.mask())
            second.take(vocabulary.byte_tokens[byte])
        assert second.data == first.data


def test_a_completion_that_can_only_end_is_complete_at_once(smollm2: Vocabulary) -> None:
    completion = ConstraintLoader(smollm2).load(llguidance_regex("ab?")).start()
    assert completion.advance(smollm2.byte_tokens[ord("a")]) == Edit([smollm2.byte_tokens[ord("a")]])
    assert completion.advance(smollm2.byte_tokens[ord("b")]).complete


def test_the_end_may_be_chosen_where_more_could_follow(smollm2: Vocabulary) -> None:
    template = ConstraintLoader(smollm2).load(llguidance_regex("ab?"))
    for end in smollm2.eos_ids:
        completion = template.start()
        with pytest.raises(ValueError, match="not allowed"):
            completion.advance(end)
        completion.advance(smollm2.byte_tokens[ord("a")])
        assert completion.advance(end) == Edit([end], complete=True)


def test_a_token_that_was_not_allowed_is_refused(smollm2: Vocabulary) -> None:
    completion = ConstraintLoader(smollm2).load(llguidance_regex("ab?")).start()
    with pytest.raises(ValueError, match="not allowed"):
        completion.advance(smollm2.byte_tokens[ord("x")])
    assert completion.advance(smollm2.byte_tokens[ord("a")]).token_ids


@pytest.mark.parametrize("words", [8, 9, 12])
def test_a_row_may_be_wider_or_narrower_than_the_vocabulary(toy: Vocabulary, words: int) -> None:
    """Models may pad their logits, or have fewer than their tokenizer has tokens."""
    completion = ConstraintLoader(toy).load(llguidance_regex("(a|b)c")).start()
    row = np.full(words, -1, np.int32)
    completion.fill(row)
    assert set(ids_in(row)) == {i for i in (97, 98, 257) if i < words * 32}


def test_a_dead_end_of_the_vocabulary_ends_the_request(toy: Vocabulary) -> None:
    """The toy's vocabulary cannot write a z."""
    completion = ConstraintLoader(toy).load(llguidance_regex("az")).start()
    row = np.zeros(toy.words, np.int32)
    completion.fill(row)
    completion.advance(ids_in(row)[0])
    completion.fill(row)
    assert ids_in(row) == toy.eos_ids, "something must be sampled"
    edit = completion.advance(toy.eos_ids[0])
    assert "none of the model's tokens" in edit.failure
    assert not edit.token_ids


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), number=st.integers(0, len(SCHEMAS) - 1))
def test_a_new_one_takes_a_completion_over(smollm2: Vocabulary, seed: int, number: int) -> None:
    """As after a retraction: from there on both do the same."""
    template = ConstraintLoader(smollm2).load(llguidance_schema(SCHEMAS[number]))
    rng = random.Random(seed)
    first = Completion(template.start(), smollm2)
    for _ in range(rng.randrange(12)):
        if first.take(rng.choice(ids_in(first.mask()))).complete:
            break
    second = Completion(template.start(), smollm2)
    taken_over = second.constraint.replay(first.token_ids)
    if first.edits:
        last = first.edits[-1]
        assert taken_over == Edit([], 0, last.held, last.complete)
    if first.edits and first.edits[-1].complete:
        return
    for _ in range(5):
        assert (first.mask() == second.mask()).all()
        token_id = rng.choice(ids_in(first.mask()))
        edits = first.take(token_id), second.take(token_id)
        assert edits[0] == edits[1]
        if edits[0].complete:
            break


# --- checks and going back ------------------------------------------------------------------------------------------


class FakeChecks:
    """Checks a text as it grows: `wrong` says of every beginning of it whether something in it is wrong."""

    def __init__(self, wrong: Callable[[str], bool], wrong_at_end: Callable[[str], bool] = lambda text: False) -> None:
        self._wrong, self._wrong_at_end = wrong, wrong_at_end
        self._data = b""
        self.held_from: int | None = 0
        self.taken: list[bytes] = []
        self.is_repeat = False
        self.reason = ""

    def push(self, data: bytes) -> bool:
        for end in range(len(self._data) + 1, len(self._data) + len(data) + 1):
            if self._wrong((self._data + data)[:end].decode("utf-8", "replace")):
                self.reason = "that at /there"
                return False
        self._data += data
        return True

    def truncate(self, length: int) -> None:
        self._data = self._data[:length]

    def finish(self) -> bool:
        self.reason = "that at the end"
        return not self._wrong_at_end(self._data.decode())


def checked(vocabulary: Vocabulary, compiled: Compiled, checks: FakeChecks, jump_forward: bool = True) -> Completion:
    matcher = load(compiled, vocabulary).start()
    return Completion(
        ConstrainedCompletion(matcher, checks, ConstraintLoader(vocabulary)._jump_forward if jump_forward else None),
        vocabulary,
    )


def twice(text: str) -> bool:
    """Whether a quoted word that has been closed is there twice."""
    words = re.findall(r'"(\w+)"', text)
    return len(words) != len(set(words))


def permutation(words: list[str], size: int) -> Compiled:
    return llguidance_schema({"type": "array", "items": {"enum": words}, "minItems": size, "maxItems": size})


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_only_values_left_are_found(smollm2: Vocabulary, seed: int, jump_forward: bool) -> None:
    words = ["apple", "apricot", "banana", "cherry", "mango"]
    completion = checked(smollm2, permutation(words, 5), FakeChecks(twice), jump_forward)
    assert wander(completion, random.Random(seed)).complete
    assert sorted(json.loads(completion.text)) == words


@pytest.mark.parametrize("seed", range(5))
def test_what_cannot_be_found_ends_with_the_reason(smollm2: Vocabulary, seed: int) -> None:
    started = time.process_time()
    completion = checked(smollm2, permutation(["apple", "apricot"], 3), FakeChecks(twice))
    edit = wander(completion, random.Random(seed))
    assert edit.failure == "that at /there; the constraint leaves no other way"
    assert completion.constraint.advance(smollm2.eos_ids[0]).failure == edit.failure, "it stays so"
    assert time.process_time() - started < 2


def test_the_number_of_tries_is_bounded(smollm2: Vocabulary) -> None:
    started = time.process_time()
    schema = {"type": "array", "items": {"type": "string", "maxLength": 200}, "minItems": 2, "maxItems": 2}
    completion = checked(smollm2, llguidance_schema(schema), FakeChecks(lambda text: text.endswith('"]')))
    edit = wander(completion, random.Random(1), 5000)
    assert edit.failure == f"that at /there; no other way was found in {MAX_TRIES} tries"
    assert time.process_time() - started < 10


def test_a_value_is_refused_once_however_it_is_cut_into_tokens(smollm2: Vocabulary) -> None:
    """ "antidisestablishment" can be cut in hundreds of ways; after one try none of them is offered again."""
    word = "antidisestablishment"
    completion = checked(smollm2, permutation([word, "b"], 2), FakeChecks(twice), jump_forward=False)
    rng = random.Random(3)
    failures = 0
    while not completion.edits or not completion.edits[-1].complete:
        token_ids = ids_in(completion.mask())
        wordy = [
            i
            for i in token_ids
            if smollm2.token_bytes[i].strip(b'["') and smollm2.token_bytes[i].strip(b'["') in word.encode()
        ]
        edit = completion.take(rng.choice(wordy or token_ids))
        assert not edit.failure
        failures += edit.rewind > 0 or not edit.token_ids
    assert sorted(json.loads(completion.text)) == [word, "b"]
    assert failures <= 2


def test_a_token_that_fails_at_once_is_not_offered_again(smollm2: Vocabulary) -> None:
    completion = checked(smollm2, llguidance_regex("[ab]{3}"), FakeChecks(lambda text: text == "ab"))
    a, b, ab = (smollm2.token_bytes.index(each) for each in (b"a", b"b", b"ab"))
    assert completion.take(a) == Edit([a], held=1)
    assert {b} <= set(ids_in(completion.mask()))
    assert completion.take(b) == Edit([], held=1)
    assert not any(smollm2.token_bytes[i].startswith(b"b") for i in ids_in(completion.mask()))
    assert completion.take(a) == Edit([a], held=2)
    assert ab not in ids_in(completion.mask()), "only one more letter"


def test_what_is_not_held_stays(smollm2: Vocabulary) -> None:
    """The check covers what comes after the comma; what is before it has been shown and is never taken back."""
    checks = FakeChecks(lambda text: bool(re.search(",[ab]*c", text)))
    checks.held_from = None
    completion = checked(smollm2, llguidance_regex("[ab]{2},[ab]{2}c"), checks)
    for letter in b"ab":
        assert completion.take(smollm2.byte_tokens[letter]).held == 0
    checks.held_from = 3
    edit = wander(completion, random.Random(1))
    assert edit.failure
    assert completion.text.startswith("ab")
    assert sum(edit.rewind > 0 or not edit.token_ids for edit in completion.edits[:-1]) >= 2, "other ways were tried"


def test_an_end_that_fails_its_check_is_not_offered_again(smollm2: Vocabulary) -> None:
    """A number at the top level is closed by nothing but the end."""
    checks = FakeChecks(lambda text: False, lambda text: int(text) % 7 != 0)
    completion = checked(smollm2, llguidance_regex("[1-9][0-9]{0,2}"), checks)
    one = smollm2.byte_tokens[ord("1")]
    completion.take(one)
    assert set(smollm2.eos_ids) <= set(ids_in(completion.mask()))
    assert completion.take(smollm2.eos_ids[0]) == Edit([], held=1)
    assert not set(smollm2.eos_ids) & set(ids_in(completion.mask()))
    edit = wander(completion, random.Random(2))
    assert edit.complete
    assert int(completion.text) % 7 == 0


def test_text_that_is_forced_after_a_choice_counts_against_the_choice(smollm2: Vocabulary) -> None:
    completion = checked(smollm2, llguidance_regex("(a-one|b-two)-end"), FakeChecks(lambda text: text == "a-one-end"))
    edit = completion.take(smollm2.byte_tokens[ord("a")])
    assert edit == Edit([], held=0)
    assert {smollm2.token_bytes[i][0] for i in ids_in(completion.mask())} == {ord("b")}


@pytest.mark.parametrize("seed", range(6))
def test_free_text_does_not_hide_the_choice_that_matters(smollm2: Vocabulary, seed: int) -> None:
    """`not` on one field, found out at the closing brace: another text in the other field would not help."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["good", "bad"]}, "note": {"type": "string", "maxLength": 60}},
        "required": ["kind", "note"],
        "additionalProperties": False,
    }
    checks = FakeChecks(lambda text: text.endswith("}") and '"kind":"bad"' in text)
    completion = checked(smollm2, llguidance_schema(schema), checks)
    while '"b' not in completion.text:
        completion.take(smollm2.byte_tokens[b'{"kind":"b'[len(completion.text)]])
    edit = wander(completion, random.Random(seed), 1000)
    assert edit.complete, edit.failure
    assert json.loads(completion.text)["kind"] == "good"
