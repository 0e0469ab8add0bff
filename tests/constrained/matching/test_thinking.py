"""Completions that may think first: the constraint holds for the answer alone, and the thinking ends where it must."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.constraint_loader import ConstraintLoader, LoadedConstraint
from sapwood.constrained.spec import Compiled, Constraint, Thinking, with_thinking
from sapwood.constrained.vocabulary import Vocabulary
from sapwood.runtime.text.thoughts.marks import ReasoningFormat
from sapwood.runtime.text.thoughts.thought_parser import ReasoningParser
from tests.constrained.conftest import Compilers, llguidance_regex, llguidance_schema
from tests.constrained.matching.test_completion import Completion, ids_in

PIECES = {b"<", b"</", b"think", b">", b"/", b"th", b"ink", b"<?", b"", b"a", b"x"}
PLAIN = Thinking(inside=True, opening="<think>", closing="</think>", gap="\n\n")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "<think>"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def changed(**changes: object) -> Thinking:
    fields = {name: getattr(PLAIN, name) for name in PLAIN.__struct_fields__}
    return Thinking(**{**fields, **changes})


def loaded(vocabulary: Vocabulary, compiled: Compiled | None, thinking: Thinking) -> LoadedConstraint:
    return ConstraintLoader(vocabulary).load(with_thinking(compiled, thinking))


def write(completion: Completion, text: str) -> None:
    """Take this text, in the tokens of the tokenizer where they are allowed and else byte by byte."""
    vocabulary = completion.vocabulary
    for token_id in vocabulary.encode(text):
        data = [token_id] if token_id in ids_in(completion.mask()) else []
        for each in data or [vocabulary.byte_tokens[byte] for byte in vocabulary.token_bytes[token_id]]:
            assert each in ids_in(completion.mask()), (completion.data, vocabulary.token_bytes[each])
            completion.take(each)


def wander(completion: Completion, rng: random.Random, most: int = 300) -> None:
    for _ in range(most):
        edit = completion.take(rng.choice(ids_in(completion.mask())))
        assert not edit.failure
        if edit.complete:
            return
    pytest.fail(f"no end: {completion.data!r}")


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_of_a_budget_then_a_valid_answer(compilers: Compilers, budget: int, jump_forward: bool) -> None:
    vocabulary = compilers.vocabulary
    template = loaded(vocabulary, compilers.schema(SCHEMA), changed(budget=budget))
    for seed in range(10):
        completion = Completion(template.start(jump_forward=jump_forward), vocabulary)
        wander(completion, random.Random(seed))
        thought, closed, answer = completion.data.partition(b"</think>")
        assert closed
        assert re.fullmatch(rb'\n\n\{"a":\d,"b":"(x|<think>)"\}', answer), answer
        before = next(
            n for n in range(len(completion.token_ids)) if b"</think>" in vocabulary.spell(completion.token_ids[:n])
        )
        marks = len(vocabulary.encode("</think>")) + 7
        assert before <= budget + marks
        if b"<" not in thought:
            assert vocabulary.spell(completion.token_ids[:budget]) == thought or not budget


def test_the_budget_is_exact(smollm2: Vocabulary) -> None:
    completion = Completion(loaded(smollm2, None, changed(budget=5)).start(), smollm2)
    for _ in range(5):
        assert len(ids_in(completion.mask())) >= len(smollm2)
        completion.take(smollm2.encode(" a")[0])
    while b"</think>" not in completion.data:
        (only,) = ids_in(completion.mask())
        completion.take(only)
    assert completion.data == b" a a a a a</think>"
    assert len(ids_in(completion.mask())) >= len(smollm2), "the answer is free"


def test_a_mark_of_one_token_is_forced_as_that_token(mistral: Vocabulary) -> None:
    control = max(mistral.control_ids - set(mistral.eos_ids))
    thinking = changed(closing="[/THINK]", opening="[THINK]", tokens={control: "[/THINK]"}, budget=1, gap="")
    completion = Completion(loaded(mistral, llguidance_regex("ab"), thinking).start(), mistral)
    completion.take(mistral.encode("x")[0])
    assert ids_in(completion.mask()) == [control]
    completion.take(control)
    assert completion.constraint.advance(mistral.byte_tokens[ord("a")]).token_ids


def test_a_mark_of_one_token_may_come_early_and_the_end_may_not(mistral: Vocabulary) -> None:
    control = max(mistral.control_ids - set(mistral.eos_ids))
    thinking = changed(closing="[/THINK]", tokens={control: "[/THINK]"}, gap="")
    completion = Completion(loaded(mistral, llguidance_regex("ab"), thinking).start(), mistral)
    allowed = ids_in(completion.mask())
    assert control in allowed
    assert not set(allowed) & set(mistral.eos_ids)
    assert not set(allowed) & (mistral.control_ids - {control})


def test_no_token_reaches_from_the_thinking_into_the_answer(smollm2: Vocabulary) -> None:
    completion = Completion(loaded(smollm2, llguidance_regex("[a-z]+"), changed(gap="")).start(), smollm2)
    write(completion, "why</think")
    longer = [i for i in ids_in(completion.mask()) if smollm2.token_bytes[i].startswith(b">")]
    assert [smollm2.token_bytes[i] for i in longer] == [b">"]
    completion.take(longer[0])
    assert all(re.fullmatch(rb"[a-z]+", smollm2.token_bytes[i]) for i in ids_in(completion.mask()))


@pytest.mark.parametrize("pattern", ["<answer>[a-z]", r"\s*[a-z]", "<think>?x", "(?s:.*)"])
def test_at_the_start_the_model_thinks_or_answers(smollm2: Vocabulary, pattern: str) -> None:
    compiled = llguidance_regex(pattern)
    template = loaded(smollm2, compiled, changed(inside=False, gap=""))
    plain = ConstraintLoader(smollm2).load(compiled)
    completion = Completion(template.start(), smollm2)
    first = set(ids_in(completion.mask()))
    assert set(ids_in(Completion(plain.start(), smollm2).mask())) <= first
    write(completion, "<think>")
    write(completion, "so it is")
    write(completion, "</think>")
    after = set(ids_in(completion.mask()))
    assert after == set(ids_in(Completion(plain.start(), smollm2).mask())), "the answer begins anew"


def test_an_answer_without_thinking_is_constrained_at_once(smollm2: Vocabulary) -> None:
    template = loaded(smollm2, llguidance_regex("<answer>[a-c]"), changed(inside=False))
    completion = Completion(template.start(jump_forward=False), smollm2)
    write(completion, "<answer>b")
    assert completion.edits[-1].complete
    assert completion.data == b"<answer>b"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("jump_forward", [True, False])
def test_whoever_comes_back_goes_on_as_before(compilers: Compilers, inside: bool, jump_forward: bool) -> None:
    """A row that was retracted replays its completion; at every point its next mask is the one it would have had."""
    vocabulary = compilers.vocabulary
    template = loaded(vocabulary, compilers.schema(SCHEMA), changed(inside=inside, budget=6))
    for seed in range(4):
        rng = random.Random(seed)
        completion = Completion(template.start(jump_forward=jump_forward), vocabulary)
        if not inside and seed % 2:
            write(completion, "<think>")
        while not (completion.edits and completion.edits[-1].complete):
            mask = completion.mask()
            again = template.start(jump_forward=jump_forward)
            again.replay(list(completion.token_ids))
            row = np.zeros(vocabulary.words, np.int32)
            again.fill(row)
            assert np.array_equal(row, mask), completion.data
            completion.take(rng.choice(ids_in(mask)))


def test_checks_go_back_within_the_answer_only(smollm2: Vocabulary) -> None:
    """A grammar with a check that fails takes back tokens of the answer; the thinking was shown and stays."""
    items = {"type": "integer", "minimum": 0, "maximum": 3}
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 3, "maxItems": 3}
    compiled = compile_constraint(Constraint("json_schema", json.dumps(schema)), smollm2)
    assert compiled.checks
    template = loaded(smollm2, compiled, changed(budget=3))
    for seed in range(20):
        completion = Completion(template.start(), smollm2)
        wander(completion, random.Random(seed), 100)
        answer = completion.data.partition(b"</think>\n\n")[2]
        values = json.loads(answer)
        assert len(set(values)) == 3


def test_schema_of_the_library_and_thinking_have_keys_of_their_own() -> None:
    compiled = llguidance_schema(SCHEMA)
    keys = {with_thinking(compiled, each).key for each in (PLAIN, changed(budget=3), changed(inside=False))}
    assert len(keys) == 3
    assert with_thinking(None, PLAIN).engine == "none"


@pytest.mark.parametrize("gap", ["", "\n\n"])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("pattern", ["<?[a-c]{1,3}>?", "(<think>)?[a-c]{2}", r"[\n ]{0,2}x|<thin"])
def test_who_reads_it_finds_the_same_answer(smollm2: Vocabulary, pattern: str, inside: bool, gap: str) -> None:
    """Random completions full of pieces of marks: what a reader takes for the answer is what the constraint allows."""
    marks = ReasoningFormat("think", "<think>", "</think>")
    pieces = smollm2.bits(i for i, data in enumerate(smollm2.token_bytes) if data and data.strip() in PIECES)
    template = loaded(smollm2, llguidance_regex(pattern), changed(inside=inside, gap=gap, budget=8))
    for seed in range(12):
        rng = random.Random(seed)
        completion = Completion(template.start(jump_forward=seed % 2 == 0), smollm2)
        while not (completion.edits and completion.edits[-1].complete):
            mask = completion.mask()
            some = mask & pieces if rng.random() < 0.7 else mask
            edit = completion.take(rng.choice(ids_in(some if some.any() else mask)))
            assert not edit.failure
        parser = ReasoningParser(marks, "inside" if inside else "unknown", gap)
        text = completion.data.decode("utf-8", "replace")
        parts = [parser.push(each) for each in text] + [parser.flush()]
        answer = "".join(each for _, each in parts)
        assert re.fullmatch(pattern, answer), (text, answer)
