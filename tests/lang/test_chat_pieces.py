"""What a state becomes as a prompt is what the chat template makes of its messages, whatever the template is like."""

from __future__ import annotations

import re
from typing import Any

import jinja2
import pytest

from sapwood.lang.backends.chat_pieces import ChatPieces, Shapes
from sapwood.lang.history import History, Segment
from sapwood.lang.ir import Role, RoleBegin, RoleEnd
from sapwood.managers.front.requests.render import Rendering
from sapwood.managers.wire.errors import InvalidRequest

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<s>system\nBe good.</s>\n{% endif %}"
    "<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAMA2 = (  # the system message is inside the user's first one; turns must alternate
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set rest = messages[1:] if system else messages %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise('turns must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}<s>[INST] {% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
)
THINKING = (  # the generation prompt opens what an ended message does not show
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
LAST_IS_OTHER = (  # a message ends differently where it is the last one
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ '\n' if loop.last else '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CONTROL = ["<s>", "</s>", "<end>"]


def raise_(text: str) -> str:
    raise InvalidRequest(text, "messages")


def render(template: str, messages: list[dict[str, Any]], opens: bool) -> str:
    source = jinja2.Template(template, keep_trailing_newline=True)
    return source.render(messages=messages, add_generation_prompt=opens, **{"raise": raise_})


def pieces(template: str) -> ChatPieces:
    async def rendered(messages: list[dict[str, Any]], opens: bool) -> Rendering:
        text = render(template, messages, opens)
        parts = [part for part in re.split("(" + "|".join(CONTROL) + ")", text) if part]
        return Rendering([[CONTROL.index(part)] if part in CONTROL else part for part in parts], text)

    return ChatPieces(rendered, Shapes())


def messages(*turns: tuple[Role, str], by_model: bool = False) -> History:
    """Ended messages. by_model: those of the assistant were generated."""
    history: History = []
    for role, content in turns:
        segment = Segment((content,), content, generated=by_model and role == "assistant")
        history += [RoleBegin(role), segment, RoleEnd(role)]
    return history


def text_of(prompt: list[Segment]) -> str:
    """The prompt's text, which its runs must spell as well."""
    text = "".join(segment.text for segment in prompt)
    runs = [run for segment in prompt for run in segment.runs]
    assert text == "".join(run if isinstance(run, str) else "".join(CONTROL[i] for i in run) for run in runs)
    return text


TURNS: list[tuple[Role, str]] = [("user", "Q1"), ("assistant", "A1"), ("user", "Q2"), ("assistant", "A2")]


@pytest.mark.parametrize("template", [CHATML, LLAMA2, LAST_IS_OTHER])
@pytest.mark.parametrize("lead", [[], [("system", "S")]])
async def test_ended_messages_give_the_templates_own_text(template: str, lead: list[Any]) -> None:
    for count in range(1, len(TURNS) + 1):
        turns = [*lead, *TURNS[:count]]
        plain = [{"role": role, "content": content} for role, content in turns]
        assert text_of(await pieces(template).prompt(messages(*turns))) == render(template, plain, False)


@pytest.mark.parametrize("template", [CHATML, LLAMA2, THINKING, LAST_IS_OTHER])
async def test_a_model_goes_on_from_the_generation_prompt(template: str) -> None:
    plain = [{"role": role, "content": content} for role, content in TURNS[:3]]
    asked: History = [*messages(*TURNS[:3]), RoleBegin("assistant")]
    assert text_of(await pieces(template).prompt(asked)) == render(template, plain, True)


@pytest.mark.parametrize("template", [CHATML, LLAMA2, THINKING, LAST_IS_OTHER])
async def test_a_model_goes_on_with_the_start_of_a_message(template: str) -> None:
    turns: list[tuple[Role, str]] = [*TURNS[:3], ("assistant", "So")]
    plain = [{"role": role, "content": content} for role, content in turns]
    prompt = text_of(await pieces(template).prompt(messages(*turns)[:-1]))
    assert prompt.endswith("So")
    assert render(template, plain, False).startswith(prompt)


@pytest.mark.parametrize("template", [CHATML, LLAMA2, THINKING, LAST_IS_OTHER])
async def test_what_was_sent_once_never_changes(template: str) -> None:
    """Each prompt with its completion is the beginning of the next one, token for token."""
    chat = pieces(template)
    turns: list[tuple[Role, str]] = []
    before = ""
    for i in range(4):
        turns.append(("user", f"Q{i}"))
        now = text_of(await chat.prompt([*messages(*turns, by_model=True), RoleBegin("assistant")]))
        assert now.startswith(before)
        turns.append(("assistant", f"A{i}"))
        before = text_of(await chat.prompt(messages(*turns, by_model=True)[:-1]))
        assert before == now + f"A{i}"


async def test_text_around_messages_keeps_its_place() -> None:
    history = [
        Segment.of("before "),
        *messages(("user", "Q")),
        Segment.of("between "),
        *messages(("user", "Q2")),
        Segment.of("."),
    ]
    text = text_of(await pieces(CHATML).prompt(history))
    assert text == "before <s>system\nBe good.</s>\n<s>user\nQ</s>\nbetween <s>user\nQ2</s>\n."
    picky = "{% for m in messages %}{{ m.content }}{{ '.' if loop.last else ';' }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="no place for text between messages"):
        await pieces(picky).prompt([*messages(("user", "Q")), Segment.of("x"), *messages(("assistant", "A"))])


async def test_an_assistant_may_speak_first() -> None:
    for begun in ([], [Segment.of("So ")]):
        prompt = await pieces(CHATML).prompt([RoleBegin("assistant"), *begun])
        assert text_of(prompt) == "<s>system\nBe good.</s>\n<s>assistant\n" + ("So " if begun else "")


async def test_what_the_template_refuses_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="turns must alternate"):
        await pieces(LLAMA2).prompt(messages(("user", "Q"), ("user", "Q2")))
    with pytest.raises(InvalidRequest, match="does not show these messages"):
        await pieces("{{ messages[0].content }}").prompt(messages(("user", "Q"), ("user", "Q2")))
