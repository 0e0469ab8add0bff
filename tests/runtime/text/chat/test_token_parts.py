"""Contents with parts of token ids: they stand where the template puts the content, and nobody forges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sapwood.runtime.errors import TemplateError
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.chat.template import ChatTemplate
from sapwood.runtime.text.tokenizers.base import Tokenizer

Message = dict[str, Any]
MakeTokenizer = Callable[[Any], Tokenizer]

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}"
    "{% endif %}<{{ 'model' if m.role == 'assistant' else m.role }}>{{ m.content | trim }}{% endfor %}<model>"
)


def says(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


S, U = says("system", "S."), says("user", "U.")


def ids(*token_ids: int) -> Message:
    return {"type": "token_ids", "token_ids": list(token_ids)}


def text(value: str) -> Message:
    return {"type": "text", "text": value}


@pytest.mark.parametrize("source", [CHATML, CHATML.replace("m.content", "m.content|trim"), ALTERNATES])
def test_token_ids_stand_where_the_content_stands(with_control_tokens: MakeTokenizer, source: str) -> None:
    tokenizer = with_control_tokens([])
    prompts = ChatPrompts({"default": source}, tokenizer)
    marked = [S, says("user", "x§y§z"), says("assistant", "§"), says("user", "q")]
    before, *middle, after = "".join(map(str, prompts.render(marked))).split("§")
    parts = [text("x"), ids(5, 300), text("y"), ids(7), ids(), text("z")]
    rendered = prompts.render([S, says("user", parts), says("assistant", [ids(9)]), says("user", "q")])
    assert rendered == [before, 5, 300, middle[0], 7, middle[1], 9, after]


def test_token_ids_survive_filters_and_quotes(with_control_tokens: MakeTokenizer) -> None:
    prompts = ChatPrompts(
        {"default": "{% for m in messages %}{{ m.content|upper|tojson }}{% endfor %}"}, with_control_tokens([])
    )
    assert prompts.render([says("user", [text(" a"), ids(4), text("b ")])]) == ['" A', 4, 'B "']


def test_token_ids_that_the_template_leaves_out_are_refused(with_control_tokens: MakeTokenizer) -> None:
    cuts = "{% for m in messages %}{{ m.content[:24] }}{% endfor %}"
    with pytest.raises(TemplateError, match=r"messages\[1\] has token ids that the chat template leaves out") as caught:
        ChatPrompts({"default": cuts}, with_control_tokens([])).render([U, says("assistant", [text("y" * 9), ids(3)])])
    assert caught.value.place == ("messages", 1)


def test_no_text_of_a_user_stands_for_token_ids(with_control_tokens: MakeTokenizer, monkeypatch: Any) -> None:
    """Each conversation has its own stand-in: one that was seen before is a text like any other."""
    seen: list[str] = []
    original = ChatTemplate.text

    def spy(self: ChatTemplate, messages: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(messages[0]["content"])
        return original(self, messages, *args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "text", spy)
    prompts = ChatPrompts({"default": CHATML}, with_control_tokens([]))
    assert prompts.render([says("user", [ids(3)])]) == ["<user>", 3, "<go>"]
    stolen = [each for each in seen if each.isdigit()][-1]
    assert prompts.render([says("user", [text(stolen), ids(4)])]) == [f"<user>{stolen}", 4, "<go>"]


def test_a_prompt_can_go_on_after_token_ids(with_control_tokens: MakeTokenizer) -> None:
    prompts = ChatPrompts({"default": CHATML}, with_control_tokens([]))
    messages = [U, says("assistant", [text("a "), ids(3)])]
    rendered = prompts.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == ["<user>U.<assistant>a ", 3]
