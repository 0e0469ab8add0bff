"""The promises where a model thinks before it answers: under budgets and constraints, streamed, in company, retracted.

The model is the real one with a chat template that opens its thinking, as Qwen3's or DeepSeek's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood import Engine
from sapwood.managers.front.generation import Generation

TEMPLATE = """\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content and loop.last %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
SCHEMA = {
    "type": "object",
    "properties": {
        "prime": {"type": "boolean"},
        "factors": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["prime", "factors"],
    "additionalProperties": False,
}
MARK = 3  # tokens of "</think>" for this model, whose vocabulary has none for it


def asks(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


REQUESTS: list[dict[str, Any]] = [
    {"messages": asks("Is 7 a prime number?"), "thinking_budget": 9, "json_schema": SCHEMA},
    {"messages": asks("Is 8 a prime number?"), "thinking_budget": 4, "regex": "yes|no"},
    {"messages": asks("Is 9 a prime number?"), "thinking_budget": 0, "json_schema": SCHEMA},
    {"messages": asks("Is 10 a prime number?"), "enable_thinking": False, "regex": "yes|no"},
    {"messages": asks("Is 11 a prime number?"), "thinking_budget": 12},
    {"messages": asks("Is 12 a prime number?"), "thinking_budget": 7, "regex": "yes|no", "logprobs": 1},
    {"messages": asks("Is 13 a prime number?")},
]
SAMPLED = [{**each, "temperature": 1.0, "seed": i, "max_tokens": 40} for i, each in enumerate(REQUESTS)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("templates") / "thinks.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def thinker(smollm2_path: Path, template: str, test_modes: dict[str, Any]) -> Iterator[Engine]:
    with Engine(smollm2_path, kv_tokens=4096, chat_template=template, **test_modes) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(thinker: Engine) -> list[Generation]:
    return [thinker.generate(**each) for each in SAMPLED]


def said(generation: Generation) -> Any:
    first = generation.completions[0]
    return first.reasoning, first.text, first.token_ids, first.reasoning_tokens, first.finish, first.logprobs


def in_company(engine: Engine, requests: list[dict[str, Any]]) -> list[Generation]:
    async def ask() -> list[Generation]:
        return await asyncio.gather(*(engine.agenerate(**each) for each in requests))

    return asyncio.run(ask())


def test_budgets_are_exact_and_constraints_hold_for_the_answer(alone: list[Generation]) -> None:
    for request, generation in zip(SAMPLED, alone):
        first, budget = generation.completions[0], request.get("thinking_budget")
        if request.get("enable_thinking") is False:
            assert (first.reasoning, first.reasoning_tokens) == ("", 0)
        if budget is not None:
            assert first.reasoning_tokens <= budget + MARK
        if "regex" in request:
            assert first.text in ("yes", "no")
        if "json_schema" in request:
            assert re.fullmatch(r'\{"prime":(true|false),"factors":\[[-\d,]*\]\}', first.text)
        assert "<think>" not in first.text + first.reasoning
        assert len(first.logprobs or first.token_ids) == len(first.token_ids)
    assert alone[0].completions[0].reasoning_tokens == 9 + MARK
    assert (alone[2].reasoning, alone[2].completions[0].reasoning_tokens) == ("", MARK)


def test_a_stream_joins_to_the_whole(thinker: Engine, alone: list[Generation]) -> None:
    for request, generation in zip(SAMPLED, alone):
        chunks = list(thinker.generate_stream(**request))
        assert "".join(each.reasoning for each in chunks) == generation.reasoning
        assert "".join(each.text for each in chunks) == generation.text
        assert chunks[-1].reasoning_tokens == generation.completions[0].reasoning_tokens
        texts = [bool(each.text) for each in chunks if each.text or each.reasoning]
        assert texts == sorted(texts), "no thinking comes after the answer has begun"


def test_company_and_a_cold_cache_change_nothing(thinker: Engine, alone: list[Generation]) -> None:
    thinker.flush_cache()
    assert [said(each) for each in in_company(thinker, SAMPLED)] == [said(each) for each in alone]


def test_retraction_changes_nothing(
    smollm2_path: Path, thinker: Engine, template: str, test_modes: dict[str, Any]
) -> None:
    """Retracted in the thinking, in the closing mark or in the answer: it goes on where it was."""
    fields = {"thinking_budget": 24, "regex": "(yes|no)(, [a-z]{3,9}){5}", "temperature": 1.0, "max_tokens": 60}
    requests = [{"messages": asks(f"Is {i} a prime?"), "seed": i, **fields} for i in range(4)]
    with Engine(smollm2_path, kv_tokens=120, chat_template=template, **test_modes) as engine:
        made = in_company(engine, requests)
        assert engine.stats().retracted > 0
    assert [said(each) for each in made] == [said(thinker.generate(**each)) for each in requests]


def test_thinking_of_the_last_turn_stays_and_of_earlier_ones_goes(thinker: Engine) -> None:
    turn = {"role": "assistant", "content": "yes", "reasoning": "7 is odd"}
    last = thinker.render([*asks("?"), turn], add_generation_prompt=False).text
    assert "<think>\n7 is odd\n</think>\n\nyes" in last
    assert "7 is odd" not in thinker.render([*asks("?"), turn, *asks("sure?")]).text
    assert not thinker.info.reasoning.keeps_earlier


def test_a_message_that_is_continued_in_its_thinking(thinker: Engine) -> None:
    """The marks of a user's own text count where that text is what is continued."""
    for content, thinks in (("<think>\nLet me see:", True), ("Yes, since", False)):
        messages = [*asks("Is 7 prime?"), {"role": "assistant", "content": content}]
        fields = {"continue_final_message": True, "temperature": 0, "max_tokens": 12, "thinking_budget": 5}
        answer = thinker.generate(messages=messages, **fields)
        assert bool(answer.reasoning) == thinks
        assert answer.completions[0].reasoning_tokens == (5 + MARK if thinks else 0)
