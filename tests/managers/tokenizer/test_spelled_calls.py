"""A regex that spells out a call stands alone; any other is what the completion matches where it calls no tool."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sapwood.constrained.spec import Constraint
from sapwood.managers.tokenizer.tool_calling import ModelTools, constraint_with_tools
from sapwood.managers.wire.requests import Chat, Submit
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.text.chat.tools.known_formats import SMOLLM2

CALL = '<tool_call>[{"name": "f", "arguments": {"a": "x|y (z"}}]</tool_call>'
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def kind_of(regex: str, model: ModelTools, **chat: Any) -> str:
    asked = Chat([{"role": "user", "content": "Hi"}], TOOLS, **{"tool_choice": "auto", **chat})
    submit = Submit("r", Sampling(max_tokens=1, seed=0), chat=asked, constraint=Constraint("regex", regex))
    made = constraint_with_tools(submit, model)
    assert made is not None
    assert (made == submit.constraint) == (made.kind == "regex")
    return made.kind


@pytest.mark.parametrize(
    ("regex", "alone"),
    [
        (re.escape(CALL), True),
        (r"<tool_call>\[\{\"name\": \"(f|g)\", [^|]*\}\]</tool_call>", True),
        (r"\<tool_call\>(a(b|c)|d)[)|]+", True),
        (r"<tool_call>x|no call", False),
        (r"<tool_call>(x)|no call", False),
        (r"<tool_call>?x", False),
        (r"<tool_call>{2}x", False),
        (r"x<tool_call>", False),
        (r"(<tool_call>x)", False),
        (r"\d", False),
        ("", False),
    ],
)
def test_a_pattern_that_only_calls_match_stands_alone(regex: str, alone: bool) -> None:
    assert (kind_of(regex, ModelTools(SMOLLM2)) == "regex") == alone


def test_marks_that_are_control_tokens_are_never_spelled() -> None:
    assert kind_of(re.escape(CALL), ModelTools(SMOLLM2, {"<tool_call>": 5})) == "tool_calls"
