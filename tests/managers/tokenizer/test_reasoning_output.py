"""Thinking told from the answer, token by token: stop strings, tool calls, marks that are control tokens, counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.spec import Compiled
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.tokenizer.prompt_encoding import Encoded, PromptEncoder
from sapwood.managers.tokenizer.reasoning_output import reasoning_output, thinking_first
from sapwood.managers.tokenizer.text_output import SampleOutput
from sapwood.managers.tokenizer.tool_calling import CallOutput, ModelTools
from sapwood.managers.wire.answers import Finish, TextChunk, TokenChunk
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.chat.tools.known_formats import HERMES
from sapwood.runtime.text.tokenizers.base import Tokenizer
from tests.runtime.text.chat.conftest import with_control_tokens

__all__ = ["with_control_tokens"]

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
PLAIN = TURNS + "<assistant>" + SWITCH
OPENED = TURNS + "<assistant><think>\n{{ '</think>' if 0 else '' }}"
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

Make = Callable[[Collection[str]], Tokenizer]


def encoded(tokenizer: Tokenizer, template: str, wanted: str = "auto", **fields: Any) -> Encoded:
    encoder = PromptEncoder(tokenizer, ChatPrompts({"default": template}, tokenizer, reasoning=wanted))
    submit = to_submit(
        GenerateRequest(messages=USER, **fields), vocab_size=tokenizer.vocab_size, defaults=OPENAI_DEFAULTS
    )
    return encoder.encode(submit, 10_000)


def output(tokenizer: Tokenizer, made: Encoded, *, constrained: bool = False) -> SampleOutput:
    calls = CallOutput(ModelTools(HERMES), made.submit) if made.submit.chat and made.submit.chat.tools else None
    reads = reasoning_output(made.submit.chat, made.reasoning, tokenizer, constrained=constrained)
    return SampleOutput(tokenizer, made.submit, 0, made.sequences[0], "", calls, (), reads)


def fed(sample: SampleOutput, ids: list[int], cuts: Collection[int] = ()) -> list[TextChunk]:
    """The chunks for these ids, cut there, until the sample has finished."""
    edges = [0, *sorted({min(cut, len(ids)) for cut in cuts} - {0}), len(ids)]
    chunks: list[TextChunk] = []
    for start, end in itertools.pairwise(edges):
        finish = Finish("length") if end == len(ids) and start <= end else None
        chunks.append(sample.take(TokenChunk("r", 0, ids[start:end], [], [], 0, finish=finish)))
        if sample.finished:
            break
    return chunks


def joined(chunks: list[TextChunk]) -> tuple[str, str, str]:
    assert chunks[-1].finish is not None
    return "".join(c.reasoning for c in chunks), "".join(c.text for c in chunks), chunks[-1].finish.reason


SAID = "<think>\nwhy STOP é\n</think>\n\nyes STOP no"


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, 60)))
def test_any_cut_gives_the_same_and_stop_strings_are_looked_for_in_the_answer(
    with_control_tokens: Make, cuts: set[int]
) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, PLAIN, stop="STOP")
    ids = tokenizer.encode(SAID)
    chunks = fed(output(tokenizer, made), ids, cuts)
    assert joined(chunks) == ("why STOP é", "yes ", "stop")
    assert chunks[-1].reasoning_tokens == len(tokenizer.encode(SAID.partition("\n\n")[0]))
    assert all(c.reasoning_tokens <= c.completion_tokens for c in chunks)


def test_counts_grow_with_the_thinking_and_stay_with_the_answer(with_control_tokens: Make) -> None:
    tokenizer = with_control_tokens([])
    sample = output(tokenizer, encoded(tokenizer, OPENED))
    ids = tokenizer.encode("ab</think>cd")
    counts = [each.reasoning_tokens for each in fed(sample, ids, range(len(ids)))]
    assert counts == [*range(1, 11), 10, 10]
    assert fed(output(tokenizer, encoded(tokenizer, PLAIN)), tokenizer.encode("<thank"))[0].reasoning_tokens == 0


@pytest.mark.parametrize("skip", [True, False])
def test_marks_that_are_control_tokens(with_control_tokens: Make, skip: bool) -> None:
    marks = ["<|START_THINKING|>", "<|END_THINKING|>", "<|other|>"]
    tokenizer = with_control_tokens(marks)
    template = TURNS + "<assistant>{{ '<|START_THINKING|><|END_THINKING|>' if 0 else '' }}"
    made = encoded(tokenizer, template, skip_special_tokens=skip)
    ids = tokenizer.encode("".join([marks[0], "a", marks[2], marks[1], "b", marks[1]]), allow_control=True)
    thought, text, _ = joined(fed(output(tokenizer, made), ids, range(9)))
    assert (thought, text) == (("a", "b") if skip else ("a<|other|>", "b<|END_THINKING|>"))


def test_tool_calls_follow_the_thinking(with_control_tokens: Make) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, PLAIN, tools=[TOOL])
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = tokenizer.encode(f"<think>maybe {call}</think>\n\nso {call}")
    chunks = fed(output(tokenizer, made), ids, range(0, 120, 7))
    assert joined(chunks)[:2] == (f"maybe {call}", "so")
    assert [p.name for c in chunks for p in c.tool_calls if p.name] == ["f"]


@pytest.mark.parametrize(
    ("fields", "wanted", "expected"),
    [
        ({}, "auto", ("why", "yes")),
        ({}, "none", ("", "<think>\nwhy\n</think>\n\nyes")),
        ({"separate_reasoning": False}, "auto", ("", "<think>\nwhy\n</think>\n\nyes")),
        ({"include_reasoning": False}, "auto", ("", "yes")),
        ({"enable_thinking": False}, "auto", ("", "<think>\nwhy\n</think>\n\nyes")),
    ],
)
def test_what_is_told_apart_and_shown(
    with_control_tokens: Make, fields: dict[str, Any], wanted: str, expected: tuple[str, str]
) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, PLAIN, wanted, **fields)
    chunks = fed(output(tokenizer, made), tokenizer.encode("<think>\nwhy\n</think>\n\nyes"))
    assert joined(chunks)[:2] == expected


GRAMMAR = Compiled("k", "llguidance", b"")


@pytest.mark.parametrize(
    ("template", "fields", "grammar", "expected"),
    [
        (PLAIN, {}, None, None),
        (PLAIN, {}, GRAMMAR, (False, -1)),
        (OPENED, {}, GRAMMAR, (True, -1)),
        (OPENED, {"thinking_budget": 3}, None, (True, 3)),
        (PLAIN, {"thinking_budget": 3}, GRAMMAR, (False, 3)),
        (PLAIN, {"enable_thinking": False}, GRAMMAR, None),
        (PLAIN, {"template_kwargs": {"enable_thinking": False}}, GRAMMAR, None),
        (OPENED, {"enable_thinking": False}, None, (True, 0)),  # the template cannot keep it from thinking
        (OPENED, {"template_kwargs": {"enable_thinking": False}}, None, (True, 0)),
        (TURNS, {"thinking_budget": 3}, GRAMMAR, None),
    ],
)
def test_what_the_completion_must_match(
    with_control_tokens: Make, template: str, fields: dict[str, Any], grammar: Compiled | None, expected: Any
) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, template, **fields)
    first = thinking_first(grammar, made.reasoning, tokenizer)
    if expected is None:
        assert first == grammar
        return
    assert first is not None
    assert first.thinking is not None
    assert (first.thinking.inside, first.thinking.budget) == expected
    assert first.key not in ("", "k")


def test_tokens_in_the_vocabulary_alone_do_not_loosen_a_constraint(with_control_tokens: Make) -> None:
    tokenizer = with_control_tokens(["<think>", "</think>"])
    made = encoded(tokenizer, TURNS + "<assistant>")
    assert thinking_first(GRAMMAR, made.reasoning, tokenizer) == GRAMMAR
    ids = tokenizer.encode("<think>why</think>yes", allow_control=True)
    assert joined(fed(output(tokenizer, made), ids))[:2] == ("why", "yes")


def test_space_of_a_constrained_answer_is_its_own(with_control_tokens: Make) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, PLAIN)
    ids = tokenizer.encode("<think>a</think>\n\n\n x")
    assert joined(fed(output(tokenizer, made, constrained=True), ids, range(20)))[1] == "\n x"
    assert joined(fed(output(tokenizer, made), ids, range(20)))[1] == "x"


def test_a_completion_that_ends_in_its_thinking_has_no_answer(with_control_tokens: Make) -> None:
    tokenizer = with_control_tokens([])
    made = encoded(tokenizer, OPENED)
    assert joined(fed(output(tokenizer, made), tokenizer.encode("why </th"), range(9))) == ("why </th", "", "length")
