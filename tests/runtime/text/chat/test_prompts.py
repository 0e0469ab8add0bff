"""Conversations that a template cannot show as they are: nothing of them is left out, and what it can show stays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.errors import TemplateError
from sapwood.runtime.text.chat import planning
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.chat.template import ChatTemplate
from sapwood.runtime.text.chat.tools.known_formats import HERMES, LLAMA3
from sapwood.runtime.text.tokenizers.base import Tokenizer

Message = dict[str, Any]

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}"
    "{% endif %}<{{ 'model' if m.role == 'assistant' else m.role }}>{{ m.content | trim }}{% endfor %}<model>"
)
CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
LLAMA = (  # one call at a time, and no text beside it
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}{{ raise_exception('single!') }}"
    "{% endif %}<call>" + CALLS + "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
MISTRAL = (  # asks for ids of nine letters and digits
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
    "{{ raise_exception('length 9!') }}{% endif %}[{{ c.function.name }} {{ c.function.arguments|tojson }} {{ c.id }}]"
    "{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}{{ raise_exception('length 9!') }}{% endif %}"
    "({{ m.tool_call_id }} {{ m.content }}){% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
ITEMS = (  # takes nothing but objects for arguments
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}]{% endfor %}{% endfor %}"
)
SHOWS_TOOLS = "{% if tools %}TOOLS{{ tools }}{% endif %}" + CHATML
TOOL = {
    "type": "function",
    "function": {"name": "set_mode", "parameters": {"properties": {"m": {"enum": ["file", "code"]}}}},
}
S, U, A = ({"role": role, "content": f"{role[0].upper()}."} for role in ("system", "user", "assistant"))


def call(*ids: str, content: str | None = None, arguments: Any = '{"a": 1}') -> Message:
    calls = [
        {"id": i, "type": "function", "function": {"name": f"f{n}", "arguments": arguments}} for n, i in enumerate(ids)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call_id: str, content: str = "R.") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def says(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


@pytest.fixture
def prompt(with_control_tokens: Callable[[Any], Tokenizer], shown: Callable[..., str]) -> Callable[..., str]:
    tokenizer = with_control_tokens([])

    def render(source: str, messages: list[Message], tools: Any = None, **fields: Any) -> str:
        prompts = ChatPrompts({"default": source}, tokenizer, lambda _: HERMES)
        return shown(tokenizer, prompts.render(messages, tools, **fields))

    return render


Render = Callable[..., str]

# --- roles ---------------------------------------------------------------------------------------------------------


def test_developer_is_system_unless_the_template_knows_it(prompt: Render) -> None:
    """ggml-org/llama.cpp#20079, vllm-project/vllm#43590: real templates dropped the role."""
    developer = says("developer", "Be brief.")
    for messages in ([developer, U], [U, A, developer, U]):
        as_system = [{**each, "role": "system"} if each is developer else each for each in messages]
        assert prompt(CHATML, messages) == prompt(CHATML, as_system)
    knows = CHATML.replace("{{ m.role }}", "{{ 'dev' if m.role == 'developer' else m.role }}")
    assert prompt(knows, [developer, U]) == "<dev>Be brief.<user>U.<go>"
    drops = CHATML.replace("%}<", "%}{% if m.role == 'developer' %}{% continue %}{% endif %}<", 1)
    assert prompt(drops, [developer, U]) == "<system>Be brief.<user>U.<go>", "it speaks of the role and leaves it out"


def test_a_template_without_a_system_role_shows_the_text_to_the_user(prompt: Render) -> None:
    assert prompt(GEMMA, [S, U]) == "<user>S.\n\nU.<model>"
    assert prompt(GEMMA, [S, says("developer", "D."), U, A, U]) == "<user>S.\n\nD.\n\nU.<model>A.<user>U.<model>"
    assert prompt(GEMMA, [S, A, U]) == "<user>S.<model>A.<user>U.<model>"
    assert prompt(GEMMA, [U, A, S, U]) == "<user>U.<model>A.<user>S.\n\nU.<model>"
    assert prompt(GEMMA, [S]) == "<user>S.<model>"


def test_neighbours_of_one_role_are_merged_where_roles_must_alternate(prompt: Render) -> None:
    assert prompt(GEMMA, [U, U, A, A, U]) == "<user>U.\n\nU.<model>A.\n\nA.<user>U.<model>"
    assert prompt(CHATML, [U, U, A, A]) == "<user>U.<user>U.<assistant>A.<assistant>A.<go>"
    assert prompt(GEMMA, [A, U]) == "<user><model>A.<user>U.<model>"


def test_a_system_message_that_the_template_would_lose_is_not_lost(prompt: Render) -> None:
    first_only = (
        "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}{% for m in messages %}"
        "{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    )
    assert prompt(first_only, [S, U]) == "<system>S.<user>U."
    assert prompt(first_only, [S, says("system", "T."), U]) == "<system>S.\n\nT.<user>U."
    assert prompt(first_only, [S, U, A, says("system", "T."), U]) == "<system>S.<user>U.<assistant>A.<user>T.<user>U."


def test_a_message_that_no_turn_can_show_is_refused_by_its_place(prompt: Render) -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\], of role 'user', is left out") as caught:
        prompt("{{ messages[-1].content }}<{{ messages|length }}>", [U, A, U])
    assert caught.value.place == ("messages", 0)
    with pytest.raises(TemplateError, match="never"):
        prompt("{{ raise_exception('never') }}", [U])


# --- tools, calls and results --------------------------------------------------------------------------------------


def test_tools_are_printed_as_jinja_prints_them(prompt: Render) -> None:
    """vllm-project/vllm#5309."""
    tool = {"type": "function", "function": {"name": "set_mode", "enum": ["file", "code"]}}
    assert prompt(SHOWS_TOOLS, [U], [tool]) == f"TOOLS{[tool]}<user>U.<go>"
    assert prompt("{% for t in tools %}{{ t|string }}{% endfor %}" + CHATML, [U], [tool]) == f"{tool}<user>U.<go>"


@pytest.mark.parametrize("source", [CHATML, GEMMA])
@pytest.mark.parametrize("messages", [[U], [S, U], [U, A, U]])
def test_tools_that_a_template_does_not_show_are_listed_at_the_start(
    prompt: Render, source: str, messages: list[Message]
) -> None:
    """OoriData/Toolio#1: Gemma 2 has no system role."""
    text = prompt(source, messages, [TOOL])
    assert text.index(json.dumps(TOOL["function"])) < text.index("U.")
    assert HERMES.example in text
    assert ("<system>" in text) == (source == CHATML)


def test_the_template_for_tools_renders_where_there_are_tools(
    with_control_tokens: Callable[[Any], Tokenizer], shown: Callable[..., str]
) -> None:
    """huggingface/transformers#31429."""
    tokenizer = with_control_tokens([])
    prompts = ChatPrompts({"default": "DEFAULT" + CHATML, "tool_use": SHOWS_TOOLS}, tokenizer)
    assert shown(tokenizer, prompts.render([U], [TOOL])).startswith("TOOLS[")
    assert shown(tokenizer, prompts.render([U])) == shown(tokenizer, prompts.render([U], [])) == "DEFAULT<user>U.<go>"
    with pytest.raises(TemplateError, match="rag"):
        ChatPrompts({"rag": CHATML}, tokenizer).render([U])


def test_a_template_that_wants_a_list_of_tools_gets_an_empty_one(prompt: Render) -> None:
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + CHATML
    assert prompt(source, [U]) == "<user>U.<go>"
    assert prompt(source, [U], [TOOL]) == "set_mode<user>U.<go>"


def test_calls_and_results_become_text_where_there_are_no_turns_for_them(prompt: Render) -> None:
    messages = [U, call("c1", content="I do."), result("c1"), A]
    written = '<tool_call>\n{"name": "f0", "arguments": {"a": 1}}\n</tool_call>'
    assert prompt(CHATML, messages) == f"<user>U.<assistant>I do.\n{written}<tool>R.<assistant>A.<go>"
    folded = f"<user>U.<model>I do.\n{written}<user><tool_response>\nR.\n</tool_response>"
    assert prompt(GEMMA, messages) == f"{folded}<model>A.<model>"
    assert prompt(GEMMA, [*messages[:-1], U]) == f"{folded}\n\nU.<model>"


def test_calls_are_made_one_at_a_time_where_the_template_takes_one(prompt: Render) -> None:
    """unslothai/unsloth#7426: Llama 3.1 refuses the answer that a server itself gave."""
    messages = [U, call("c1", "c2"), result("c2", "two"), result("c1", "one"), A]
    assert prompt(LLAMA, messages) == '<user>U.<call>[f0 {"a": 1}]<tool>one<call>[f1 {"a": 1}]<tool>two<assistant>A.'
    no_ids = [U, call("c1", "c2"), says("tool", "one"), says("tool", "two")]
    assert prompt(LLAMA, no_ids) == '<user>U.<call>[f0 {"a": 1}]<tool>one<call>[f1 {"a": 1}]<tool>two'
    with_text = [U, call("c1", content="I do."), result("c1")]
    assert prompt(LLAMA, with_text) == '<user>U.<assistant>I do.<call>[f0 {"a": 1}]<tool>R.'
    assert prompt(LLAMA, [U, call("c1"), result("c1")]) == '<user>U.<call>[f0 {"a": 1}]<tool>R.'


def test_foreign_ids_are_made_ones_that_the_template_accepts(prompt: Render) -> None:
    own = [U, call("abcDEF123"), result("abcDEF123")]
    assert prompt(MISTRAL, own) == '<user>U.[f0 {"a": 1} abcDEF123]<assistant>(abcDEF123 R.)'
    foreign = [U, call("call_1", "call_2"), result("call_2", "two"), result("call_1", "one")]
    text = prompt(MISTRAL, foreign)
    first, second = (text.split(f"[f{n} ")[1].split("]")[0][-9:] for n in (0, 1))
    assert f"({second} two)({first} one)" in text
    assert first != second
    assert first.isalnum()
    longer = prompt(MISTRAL, [*foreign, A, U])
    assert longer.startswith(text), "an id is the same in every turn"
    missing = [U, {**call("x"), "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, says("tool", "one")]
    assert "one)" in prompt(MISTRAL, missing)


def test_a_result_says_whose_it_is_where_the_template_asks(prompt: Render) -> None:
    source = (
        "{% for m in messages %}{{ '<' + m.role + '>' + (m.name + ': ' if m.role == 'tool' else '') + m.content }}"
        + CALLS
        + "{% endfor %}"
    )
    assert prompt(source, [U, call("c1"), result("c1")]) == '<user>U.<assistant>[f0 {"a": 1}]<tool>f0: R.'


def test_the_older_role_of_results(prompt: Render) -> None:
    source = CHATML.replace("%}<", "%}{% if m.role == 'function' %}{% continue %}{% endif %}<", 1)
    messages = [U, A, {"role": "function", "name": "f", "content": "R."}, A]
    assert prompt(source, messages) == "<user>U.<assistant>A.<tool>R.<assistant>A.<go>"
    assert prompt(CHATML, messages) == "<user>U.<assistant>A.<function>R.<assistant>A.<go>"


@pytest.mark.parametrize("arguments", ["", " \n", None, "null", "[]", "{}", {}])
def test_empty_arguments_are_an_empty_object(prompt: Render, arguments: Any) -> None:
    """vllm-project/vllm#48922."""
    for source, expected in ((ITEMS, "[f0]"), ("{% for m in messages %}" + CALLS + "{% endfor %}", "[f0 {}]")):
        assert expected in prompt(source, [call("c1", arguments=arguments), result("c1", "")])
    missing = call("c1")
    del missing["tool_calls"][0]["function"]["arguments"]
    assert "[f0]" in prompt(ITEMS, [U, missing, result("c1")])


@pytest.mark.parametrize("arguments", ['{"x": 1', '{"x": "abc', '"x', "5", "[1]", '{"x": 1}}', "x" * 10])
def test_arguments_that_are_cut_off_leave_a_trace(prompt: Render, arguments: str) -> None:
    """vllm-project/vllm#19419: an answer that was cut off is part of the next request."""
    broken = [U, call("c1", arguments=arguments), result("c1"), call("c2"), result("c2")]
    text = prompt(ITEMS, broken)
    assert f'"arguments": {arguments}' in text, "as the model wrote it"
    assert text.endswith("<tool>R.<assistant>[f0 a=1]<tool>R."), "the other calls stay as they were"
    assert json.dumps(arguments) in prompt("{% for m in messages %}{{ m.content }}" + CALLS + "{% endfor %}", broken)


def test_data_that_the_template_cannot_cope_with_is_shown_as_text(prompt: Render) -> None:
    wants_texts = "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}" + CHATML
    assert prompt(wants_texts, [U], [TOOL]).startswith("set_mode<user>")
    recursion = "{% for t in tools or [] %}{{ t.function.name + t.function.parameters.properties.q.type }}{% endfor %}"
    assert json.dumps(TOOL["function"]) in prompt(recursion + CHATML, [U], [TOOL])
    joins = ITEMS.replace("{{ v }}", "{{ '' + v }}")
    text = prompt(joins, [U, call("c1", arguments='{"q": 1}'), result("c1")])
    assert '{"name": "f0", "arguments": {"q": 1}}' in text


# --- all conversations ---------------------------------------------------------------------------------------------

ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "call", "calls"])


@settings(max_examples=150, deadline=None)
@given(
    roles=st.lists(ROLES, min_size=1, max_size=7),
    source=st.sampled_from([CHATML, GEMMA, LLAMA, MISTRAL, ITEMS]),
    tools=st.booleans(),
)
def test_every_text_is_in_the_prompt(smollm2: Tokenizer, roles: list[str], source: str, tools: bool) -> None:
    messages: list[Message] = []
    for i, role in enumerate(roles):
        if role in ("call", "calls"):
            messages.append(call(*(f"c{i}{n}" for n in range(1 + (role == "calls"))), content=f"«{i}»" * (i % 2)))
        else:
            messages.append({"role": role, "content": f"«{i}»"})
    rendered = ChatPrompts({"default": source}, smollm2).render(messages, [TOOL] if tools else None)
    whole = "".join(each if isinstance(each, str) else smollm2.token_text(each) for each in rendered)
    assert [m["content"] for m in messages if m["content"] not in whole] == []
    assert all(whole.count(m["content"]) == 1 for m in messages if m["content"])
    calls = sum(len(m.get("tool_calls", ())) for m in messages)
    assert whole.count('"a": 1') + whole.count("a=1") == calls
    assert ("set_mode" in whole) == tools


# --- trying out ----------------------------------------------------------------------------------------------------


def test_a_shape_is_tried_out_once(with_control_tokens: Callable[[Any], Tokenizer], monkeypatch: Any) -> None:
    prompts = ChatPrompts({"default": GEMMA}, with_control_tokens([]))
    counts = []
    original = ChatTemplate.text

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[-1] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "text", counted)
    for words in ("a", "b", "c"):
        counts.append(0)
        prompts.render([says("system", words), says("user", words), says("assistant", words)])
    assert counts[0] > 1
    assert counts[1:] == [1, 1]


@pytest.mark.alone
def test_trying_out_has_a_limit_of_time(with_control_tokens: Callable[[Any], Tokenizer], monkeypatch: Any) -> None:
    monkeypatch.setattr(planning, "PLANNING_SECONDS", 0.2)
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}" + CHATML
    start = time.monotonic()
    with pytest.raises(TemplateError):
        ChatPrompts({"default": slow}, with_control_tokens([])).render([U])
    assert time.monotonic() - start < 1


def test_a_style_is_used_for_calls_as_text(with_control_tokens: Callable[[Any], Tokenizer]) -> None:
    prompts = ChatPrompts({"default": CHATML}, with_control_tokens([]), lambda _: LLAMA3)
    assert prompts.render([U, call("c1")]) == ['<user>U.<assistant>{"name": "f0", "parameters": {"a": 1}}<go>']


@pytest.mark.parametrize("source", [CHATML, GEMMA, LLAMA, MISTRAL, ITEMS])
def test_a_longer_conversation_begins_like_the_shorter_one(prompt: Render, source: str) -> None:
    """What was shown of earlier turns stays, so that the cache holds it."""
    rounds = [
        [U, A],
        [U, call("call_1"), result("call_1"), A],
        [U, call("call_2", "call_3"), result("call_3"), result("call_2"), A],
        [U, call("abcDEF123", content="I do."), result("abcDEF123"), call("c", arguments='{"x'), result("c"), A],
        [U, A, S],
        [U, U, A],
    ]
    messages, before = [S], ""
    for more in rounds * 3:
        messages = [*messages, *more]
        text = prompt(source, messages, [TOOL], add_generation_prompt=False).removesuffix("<model>")
        assert text.startswith(before)
        before = text if more[-1] is A else before


def test_a_user_who_speaks_right_after_a_result(prompt: Render) -> None:
    """Only that turn becomes text where the template refuses it, not the others."""
    refuses = (
        "{% for m in messages %}{% if m.role == 'tool' and not loop.last and loop.nextitem.role == 'user' %}"
        "{{ raise_exception('no user there') }}{% endif %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}"
    )
    rounds = [U, call("c1"), result("c1"), A]
    native = '<user>U.<assistant>[f0 {"a": 1}]<tool>R.<assistant>A.'
    assert prompt(refuses, rounds) == native
    text = prompt(refuses, [*rounds, U, call("c2"), result("c2"), U])
    assert text.startswith(f"{native}<user>U.<assistant><tool_call>")
    assert text.endswith("</tool_call><user><tool_response>\nR.\n</tool_response><user>U.")


def test_a_template_that_takes_contents_as_parts_only(prompt: Render) -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    assert prompt(source, [S, U, says("assistant", "")]) == "<system>S.<user>U.<assistant>"
    ended = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt(source, [U, says("assistant", "a b")], **ended) == "<user>U.<assistant>a b"


def test_results_that_are_text_stand_in_the_order_of_their_calls(prompt: Render) -> None:
    text = prompt(GEMMA, [U, call("c1", "c2"), result("c2", "two"), result("c1", "one")])
    assert text.index("f0") < text.index("f1") < text.index("one") < text.index("two")


def test_a_system_text_that_is_shown_at_times_only_goes_to_the_user_at_the_other_times(prompt: Render) -> None:
    """Mistral Nemo's template shows it in the last message, and only where that is a user's."""
    nemo = (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
        "{% set messages = messages[1:] %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}<{{ m.role }}>"
        "{% if loop.last and m.role == 'user' and system %}{{ system }}+{% endif %}{{ m.content }}"
        + CALLS
        + "{% endfor %}"
    )
    assert prompt(nemo, [S, U, A, U]) == "<user>U.<assistant>A.<user>S.+U."
    asked = [S, U, call("c1"), result("c1")]
    assert prompt(nemo, asked) == '<user>S.\n\nU.<assistant>[f0 {"a": 1}]<tool>R.'


def test_thoughts_of_merged_messages_are_merged_too(prompt: Render) -> None:
    source = GEMMA.replace("{{ m.content | trim }}", "({{ m.reasoning_content }}){{ m.content }}")
    thinks = [{**A, "reasoning_content": each} for each in "xy"]
    assert (
        prompt(source, [{**U, "name": "Ann"}, U, *thinks, U])
        == "<user>()U.\n\nU.<model>(x\n\ny)A.\n\nA.<user>()U.<model>"
    )
