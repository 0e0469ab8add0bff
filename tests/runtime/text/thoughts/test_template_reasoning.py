"""What templates do about thinking: found for small ones of every kind, and for real ones where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime.errors import TemplateError
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.thoughts.template_reasoning import TemplateReasoning
from sapwood.runtime.text.tokenizers.base import Tokenizer

Make = Callable[[Collection[str]], Tokenizer]
TEMPLATES = os.environ.get("SAPWOOD_CHAT_TEMPLATES", "")
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SHOWS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content and (loop.last or KEEP) %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% endfor %}"
)
OPENS = "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
SWITCHED = (
    "{% if add_generation_prompt %}<assistant>"
    "{% if NAME is defined and NAME == VALUE %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
U = {"role": "user", "content": "<think>"}


def reasoning(make: Make, source: str, control: Collection[str] = (), wanted: str = "auto") -> TemplateReasoning:
    return ChatPrompts({"default": source}, make(control), reasoning=wanted).reasoning()


def begins(make: Make, source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    prompts = ChatPrompts({"default": source}, make([]))
    return prompts.prompt(messages, None, True, False, lambda _: kwargs).begins


def test_a_template_without_marks_does_not_think(with_control_tokens: Make) -> None:
    found = reasoning(with_control_tokens, TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}")
    assert (found.marks, found.on, found.off, found.field, found.takes_effort) == (None, None, None, None, False)
    assert begins(with_control_tokens, TURNS, [U]) == "answer"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("</think>", "think"),
        ("[THINK][/THINK]", "mistral"),
        ("<seed:think></seed:think>", "seed"),
        ("<|START_THINKING|><|END_THINKING|>", "command"),
        ("{% set a = '<|channel>thought\n<channel|>' %}", "gemma"),
        ("◁think▷ ◁/think▷", "kimi"),
        ("{# </think> #}", None),
        ("<think>", None),
        ("</thinking_instructions>", None),
    ],
)
def test_the_marks_that_a_template_speaks_of(with_control_tokens: Make, source: str, name: str | None) -> None:
    marks = reasoning(with_control_tokens, TURNS + source).marks
    assert (marks and marks.name) == name


def test_marks_that_are_built_are_seen_in_a_prompt(with_control_tokens: Make) -> None:
    built = "{% set hy = ':opensource' %}" + TURNS.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}{{ '<think{}>'.format(hy) + m.reasoning_content + '</think{}>'.format(hy) }}"
        "{% endif %}{{ m.content }}",
    )
    marks = reasoning(with_control_tokens, built).marks
    assert marks is not None
    assert marks.closing == "</think:opensource>"


def test_marks_of_the_vocabulary_alone_and_by_name(with_control_tokens: Make) -> None:
    found = reasoning(with_control_tokens, TURNS, ["[THINK]", "[/THINK]"]).marks
    assert found is not None
    assert (found.name, found.in_template) == ("mistral", False)
    assert reasoning(with_control_tokens, TURNS, ["[/THINK]"]).marks is None
    named = reasoning(with_control_tokens, TURNS, wanted="seed").marks
    assert named is not None
    assert (named.name, named.in_template) == ("seed", True)
    assert reasoning(with_control_tokens, TURNS + "</think>", wanted="none").marks is None


def test_where_a_completion_begins(with_control_tokens: Make) -> None:
    assert begins(with_control_tokens, SHOWS + OPENS, [U]) == "inside"
    switched = SHOWS + SWITCHED.replace("NAME", "enable_thinking").replace("VALUE", "false")
    assert begins(with_control_tokens, switched, [U]) == "unknown"
    assert begins(with_control_tokens, switched, [U], enable_thinking=False) == "answer"


def test_a_users_mark_opens_nothing(with_control_tokens: Make) -> None:
    """The last user's text ends with the opening mark, and the template adds nothing after it."""
    assert begins(with_control_tokens, TURNS + "{{ '</think>' if 0 else '' }}", [U]) == "unknown"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>\nso", "inside"),
        ("<think>a</think>b", "answer"),
        ("b", "answer"),
        ("", "unknown"),
        ("a<think>", "inside"),
    ],
)
def test_a_message_that_is_continued(with_control_tokens: Make, content: str, expected: str) -> None:
    prompts = ChatPrompts({"default": SHOWS}, with_control_tokens([]))
    messages = [U, {"role": "assistant", "content": content}]
    assert prompts.prompt(messages, None, False, True, lambda _: {}).begins == expected


@pytest.mark.parametrize(
    ("name", "value", "off", "on"),
    [
        ("enable_thinking", "false", False, True),
        ("thinking", "false", False, True),
        ("thinking_mode", "'disabled'", "disabled", "enabled"),
        ("thinking_option", "'off'", "off", "on"),
        ("thinking_budget", "0", 0, None),
        ("reasoning_effort", "'no_think'", "no_think", None),
    ],
)
def test_switches(with_control_tokens: Make, name: str, value: str, off: Any, on: Any) -> None:
    found = reasoning(with_control_tokens, SHOWS + SWITCHED.replace("NAME", name).replace("VALUE", value))
    assert found.off == {name: off}
    assert found.on == (None if on is None else {name: on})
    assert found.takes_switch
    wish = {"effort": "", "budget": -1, "given": {}}
    assert found.kwargs(enabled=False, **wish) == {name: off}
    assert found.kwargs(enabled=None, **wish) == {}
    assert found.kwargs(enabled=False, effort="", budget=-1, given={name: "mine"}) == {name: "mine"}


def test_effort_and_budget_go_to_templates_that_know_them(with_control_tokens: Make) -> None:
    knows = reasoning(with_control_tokens, TURNS + "{{ reasoning_effort }}{{ thinking_budget }}")
    assert knows.takes_effort
    wish = {"enabled": True, "effort": "high", "budget": 7, "given": {}}
    assert knows.kwargs(**wish) == {"reasoning_effort": "high", "thinking_budget": 7}
    ignorant = reasoning(with_control_tokens, TURNS + "{% set reasoning_effort = 1 %}{{ reasoning_effort }}")
    assert not ignorant.takes_effort
    assert ignorant.kwargs(**wish) == {}


@pytest.mark.parametrize("keeps", [True, False])
def test_history(with_control_tokens: Make, keeps: bool) -> None:
    source = SHOWS.replace("KEEP", str(keeps).lower()) + OPENS
    found = reasoning(with_control_tokens, source)
    assert (found.field, found.gap, found.keeps_earlier) == ("reasoning_content", "\n\n", keeps)


@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("known", ["reasoning_content", "reasoning", "thinking", None])
def test_earlier_thinking_has_the_name_that_the_template_knows(
    with_control_tokens: Make, given: str, known: str | None
) -> None:
    source = SHOWS.replace("reasoning_content", known or "nothing").replace("KEEP", "true")
    prompts = ChatPrompts({"default": source}, with_control_tokens([]))
    turn = {"role": "assistant", "content": "yes", given: "why <user>"}
    text = "".join(map(str, prompts.render([U, turn], add_generation_prompt=False)))
    assert ("why" in text) == (known is not None)
    users = prompts.render([{**turn, "role": "user"}], add_generation_prompt=False)
    assert ("why" in str(users)) == (known == given)


@pytest.mark.parametrize("refuses", [True, False])
def test_thinking_goes_where_a_template_refuses_it_beside_text_and_calls(
    with_control_tokens: Make, refuses: bool
) -> None:
    check = "{% if m.tool_calls and m.content and m.reasoning_content %}{{ raise_exception('both') }}{% endif %}"
    calls = "{% for c in m.tool_calls %}[{{ c.function.name }}{{ c.function.arguments }}]{% endfor %}"
    source = SHOWS.replace("KEEP", "true").replace(
        "{{ m.content }}", (check if refuses else "") + "{{ m.content }}" + calls
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "let me see", "reasoning": "why", "tool_calls": [call]}
    messages = [{"role": "user", "content": "hi"}, turn, {"role": "tool", "tool_call_id": "a", "content": "4"}]
    text = "".join(map(str, ChatPrompts({"default": source}, with_control_tokens([])).render(messages)))
    assert "let me see[f" in text
    assert ("why" in text) != refuses
    lone = [messages[0], {**turn, "content": ""}, messages[2]]
    assert "why" in str(ChatPrompts({"default": source}, with_control_tokens([])).render(lone))


def test_a_template_that_fails_has_no_abilities(with_control_tokens: Make) -> None:
    found = reasoning(with_control_tokens, "</think>{{ raise_exception('no') }}{{ enable_thinking }}")
    assert (found.on, found.off, found.field, found.gap, found.keeps_earlier) == (None, None, None, "", False)
    with pytest.raises(TemplateError):
        begins(with_control_tokens, "</think>{{ raise_exception('no') }}", [U])


REAL: dict[str, tuple[str | None, str, str, bool]] = {
    "Qwen-Qwen3-0.6B": ("think", "unknown", "answer", False),
    "Qwen3.5-4B": ("think", "inside", "answer", False),
    "deepseek-ai-DeepSeek-V3.1": ("think", "answer", "answer", False),
    "llama-cpp-deepseek-r1": ("think", "inside", "inside", False),
    "HuggingFaceTB-SmolLM3-3B": ("think", "unknown", "answer", False),
    "GLM-4.6": ("think", "unknown", "answer", False),
    "ByteDance-Seed-OSS": ("seed", "unknown", "answer", True),
    "Cohere2MoE": ("command", "inside", "answer", True),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("think", "inside", "answer", False),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "unknown", "unknown", False),
    "google-gemma-4-31B-it": ("gemma", "answer", "answer", False),
    "MiniMax-M3": ("minimax", "unknown", "answer", True),
    "tencent-Hy3": ("hunyuan", "answer", "answer", False),
    "Qwen-Qwen2.5-7B-Instruct": (None, "answer", "answer", False),
    "meta-llama-Llama-3.1-8B-Instruct": (None, "answer", "answer", False),
    "Qwen3-Coder": (None, "answer", "answer", False),
}


@pytest.mark.skipif(not TEMPLATES, reason="SAPWOOD_CHAT_TEMPLATES names no folder of templates")
@pytest.mark.parametrize("name", REAL)
def test_real_templates(with_control_tokens: Make, name: str) -> None:
    """(marks, where a completion begins, where with thinking switched off, whether earlier thinking is kept)"""
    prompts = ChatPrompts({"default": (Path(TEMPLATES) / f"{name}.jinja").read_text()}, with_control_tokens([]))
    found = prompts.reasoning()
    turns = [{"role": "user", "content": "x"}]
    at = [prompts.prompt(turns, None, True, False, lambda _, each=each: each).begins for each in ({}, found.off or {})]
    marks = found.marks.name if found.marks else None
    assert (marks, *at, found.keeps_earlier) == REAL[name]
