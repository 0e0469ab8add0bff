"""Both engines behind one interface: masks, steps back, forced text, and nothing shared between completions."""

from __future__ import annotations

import random
import time
from typing import Any

import llguidance
import numpy as np
import pytest

from sapwood.constrained.engines import llguidance as llguidance_engine
from sapwood.constrained.engines.base import Matcher
from sapwood.constrained.engines.registry import load
from sapwood.constrained.spec import Compiled, ConstraintError
from sapwood.constrained.vocabulary import Vocabulary
from tests.constrained.conftest import ENDLESS, Compilers, llguidance_regex

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["apple", "apricot", "é", "è", 12]},
        "tags": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}
REGEX = "(ab|[a-c]{2,4}x?)-[0-9]{1,3}(é|è)?"


def allowed(matcher: Matcher) -> list[int]:
    flags = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return np.flatnonzero(flags).tolist()


def step(matcher: Matcher, rng: random.Random) -> int | None:
    """Goes on by a random token that is allowed and no end; None where there is none."""
    token_ids = [i for i in allowed(matcher) if matcher.vocabulary.token_bytes[i]]
    if not token_ids:
        return None
    token_id = rng.choice(token_ids)
    assert matcher.accept(token_id)
    return token_id


@pytest.mark.parametrize("seed", range(3))
def test_a_mask_allows_just_what_is_accepted(compilers: Compilers, seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = compilers.vocabulary
    matcher = load(compilers.schema(PERSON), vocabulary).start()
    for _ in range(12):
        may = set(allowed(matcher))
        near = [i for byte in vocabulary.first_bytes(matcher.mask()) for i in vocabulary.starting_with(bytes([byte]))]
        groups = range(len(vocabulary)), near, sorted(may)
        tried = [token_id for group in groups for token_id in rng.sample(group, min(len(group), 100))]
        for token_id in tried:
            if token_id in vocabulary.eos_ids:
                continue
            accepted = matcher.accept(token_id)
            assert accepted == (token_id in may)
            matcher.rollback(int(accepted))
        assert set(allowed(matcher)) == may, "what was tried has left no trace"
        if step(matcher, rng) is None:
            break


@pytest.mark.parametrize("seed", range(5))
def test_the_engines_allow_the_same_for_a_regex(compilers: Compilers, seed: int) -> None:
    """Each is the other's oracle; a run with llguidance twice only checks that masks repeat."""
    rng = random.Random(seed)
    here = load(compilers.regex(REGEX), compilers.vocabulary).start()
    there = load(llguidance_regex(REGEX), compilers.vocabulary).start()
    while True:
        assert (here.mask() == there.mask()).all()
        assert (here.may_end, here.is_over) == (there.may_end, there.is_over)
        token_id = step(here, rng)
        if token_id is None:
            break
        assert there.accept(token_id)


def test_end_tokens_are_allowed_where_it_may_end_and_control_tokens_never(compilers: Compilers) -> None:
    vocabulary = compilers.vocabulary
    matcher = load(compilers.regex(r"(.|\n)*"), vocabulary).start()
    assert set(allowed(matcher)).intersection(vocabulary.control_ids) == set(vocabulary.eos_ids)
    assert len(vocabulary.eos_ids) == 2
    matcher = load(compilers.regex("ab"), vocabulary).start()
    assert not set(allowed(matcher)).intersection(vocabulary.eos_ids)
    assert not matcher.may_end


def test_bits_past_the_vocabulary_are_zero(toy: Vocabulary) -> None:
    matcher = load(llguidance_regex(r"(.|\n)*"), toy).start()
    assert len(matcher.mask()) == 9
    assert max(allowed(matcher)) == 262
    assert {259, 261, ord("z")}.isdisjoint(allowed(matcher)), "neither control tokens nor ids without a token"


@pytest.mark.parametrize("seed", range(3))
def test_rollback_restores_every_earlier_position(compilers: Compilers, seed: int) -> None:
    rng = random.Random(seed)
    matcher = load(compilers.schema(PERSON), compilers.vocabulary).start()
    masks = [matcher.mask().copy()]
    for _ in range(60):
        if len(masks) > 1 and rng.random() < 0.3:
            back = rng.randint(1, len(masks) - 1)
            matcher.rollback(back)
            del masks[len(masks) - back :]
        elif step(matcher, rng) is not None:
            masks.append(matcher.mask().copy())
        assert (matcher.mask() == masks[-1]).all()


def test_rollback_from_the_very_end(compilers: Compilers) -> None:
    vocabulary = compilers.vocabulary
    matcher = load(compilers.regex("abcd"), vocabulary).start()
    before = matcher.mask().copy()
    token_ids = [vocabulary.byte_tokens[byte] for byte in b"abcd"]
    assert all(matcher.accept(token_id) for token_id in token_ids)
    assert matcher.is_over
    assert matcher.may_end
    assert allowed(matcher) == vocabulary.eos_ids
    matcher.rollback(4)
    assert not matcher.is_over
    assert (matcher.mask() == before).all()


def test_completions_of_one_template_share_nothing(compilers: Compilers) -> None:
    """R23: a cached grammar kept the last user's position."""
    template = load(compilers.schema(PERSON), compilers.vocabulary)
    alone = []
    for seed in range(3):
        rng, matcher = random.Random(seed), template.start()
        steps = [(matcher.mask().copy(), step(matcher, rng)) for _ in range(15)]
        alone.append(steps)
    matchers = [template.start() for _ in range(3)]
    for position in range(15):
        for matcher, steps in zip(matchers, alone):
            mask, token_id = steps[position]
            assert (matcher.mask() == mask).all()
            assert token_id is None or matcher.accept(token_id)
    assert (template.start().mask() == alone[0][0][0]).all()


@pytest.mark.parametrize("seed", range(4))
def test_forced_bytes_are_the_only_way_on(compilers: Compilers, seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = compilers.vocabulary
    matcher = load(compilers.schema(PERSON), vocabulary).start()
    found = 0
    for _ in range(25):
        forced = matcher.forced()
        for byte in forced:
            assert vocabulary.first_bytes(matcher.mask()) == [byte]
            assert not matcher.may_end
            assert matcher.accept(vocabulary.byte_tokens[byte])
        matcher.rollback(len(forced))
        found += len(forced)
        if step(matcher, rng) is None:
            break
    assert found > 20


@pytest.mark.timeout(20)
def test_text_that_is_forced_without_end_is_found_in_parts(compilers: Compilers) -> None:
    forced = load(compilers.schema(ENDLESS), compilers.vocabulary).start().forced()
    assert len(forced) >= 200
    assert (b'{"next":' * len(forced)).startswith(forced)


def test_a_payload_that_cannot_be_read_is_refused(toy: Vocabulary, smollm2: Vocabulary) -> None:
    with pytest.raises(ConstraintError, match="unknown name"):
        load(Compiled(key="", engine="llguidance", payload=b"start: nothing"), toy)
    for payload in (b"{}", b"not json", Compilers("xgrammar", toy).regex("a+").payload):
        with pytest.raises(ConstraintError, match="cannot be loaded"):
            load(Compiled(key="", engine="xgrammar", payload=payload), smollm2)


def test_a_limit_on_work_is_an_error_that_says_so(toy: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an ambiguous grammar every further token takes longer, until the engine gives up."""
    monkeypatch.setattr(llguidance_engine, "LIMITS", llguidance.LLParserLimits(max_items_in_row=300))
    grammar = 'start: s\ns: s s | s s s | "a"\n'
    matcher = load(Compiled(key="", engine="llguidance", payload=grammar.encode()), toy).start()
    longest = 0.0
    for _ in range(500):
        started = time.process_time()
        mask = matcher.mask()
        longest = max(longest, time.process_time() - started)
        if not mask.any() or not matcher.accept(ord("a")):
            break
    assert "too complex" in matcher.error
    assert "items" in matcher.error
    assert not matcher.mask().any()
    assert longest < 0.3


def test_the_past_of_a_grammar_is_no_limit_for_a_new_completion(
    toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All completions of a template add states to one lexer; when that is full, it starts anew."""
    monkeypatch.setattr(llguidance_engine, "LIMITS", llguidance.LLParserLimits(max_lexer_states=300))
    template = load(llguidance_regex("(a|b)*a(a|b){14}c"), toy)
    rng = random.Random(1)
    for _ in range(20):
        matcher = template.start()
        for _ in range(40):
            assert set(allowed(matcher)) >= {ord("a"), ord("b")}, matcher.error
            assert matcher.accept(rng.choice(b"ab")), matcher.error
