"""The calls of a completion as their reader gives them out: ids, custom tools, text of marks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapwood.managers.tokenizer.tool_calling import CallOutput, ModelTools
from sapwood.managers.wire.answers import Finish
from sapwood.managers.wire.requests import Chat, CustomFormat, Submit
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.text.chat.tools.custom_input import CustomInput
from sapwood.runtime.text.chat.tools.known_formats import BY_NAME

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"input": {"type": "string"}}}}}
ARGUMENTS = '{"input": "x"}'


def output(name: str, **fields: Any) -> CallOutput:
    chat = Chat([{"role": "user", "content": "x"}], tools=[TOOL], tool_choice="auto", **fields)
    sampling = Sampling(max_tokens=10, seed=0)
    return CallOutput(ModelTools(BY_NAME[name]), Submit("r", sampling, chat=chat))


@pytest.mark.parametrize("name", ["mistral", "mistral-list", "mistral-ids"])
def test_mistrals_templates_take_the_ids(name: str) -> None:
    calls = output(name)
    text = BY_NAME[name].written([("f", ARGUMENTS), ("f", ARGUMENTS)])
    _, pieces, finish = calls.take(text, Finish("stop"))
    ids = [piece.id for piece in pieces if piece.id]
    assert finish == Finish("tool_calls")
    assert len(ids) == 2
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)


def test_ids_that_the_model_writes_are_kept() -> None:
    text = BY_NAME["mistral-ids"].written([("f", ARGUMENTS)]).replace("call00000", "aB3dE6gH9")
    assert output("mistral-ids").take(text, None)[1][0].id == "aB3dE6gH9"
    text = BY_NAME["kimi-k2"].written([("f", ARGUMENTS), ("f", "{}")])
    assert [piece.id for piece in output("kimi-k2").take(text, None)[1]] == ["functions.f:0", "functions.f:1"]
    text = BY_NAME["command-r7b"].written([("f", ARGUMENTS)])
    assert output("command-r7b").take(text, None)[1][0].id.startswith("call_")


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "lfm2"])
def test_a_custom_tools_arguments_are_its_input_in_any_pieces(name: str) -> None:
    said = 'a "b"\\n\n{} é 😀'
    text = BY_NAME[name].written([("f", json.dumps({"input": said}))])
    calls = output(name, custom={"f": CustomFormat()})
    pieces = [piece for char in text for piece in calls.take(char, None)[1]]
    assert "".join(piece.arguments for piece in pieces) == said
    assert all(piece.custom for piece in pieces)
    assert [piece.name for piece in pieces if piece.name] == ["f"]


def test_escapes_of_pairs_and_halves_become_text() -> None:
    for written, text in (("\\ud83d\\ude00!", "😀!"), ("\\ud83dx", "x"), ("\\u00e9\\t\\/", "é\t/"), ("", "")):
        reader = CustomInput()
        assert "".join(map(reader.push, f'{{ "input" : "{written}" }} ')) == text


def test_channels_give_thinking_apart() -> None:
    calls = output("gpt-oss")
    text, pieces, finish = calls.take("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", None)
    assert (text, pieces, finish, calls.reasoning) == ("", [], None, "Hm.")
    _, pieces, finish = calls.take(f"<|channel|>commentary to=functions.f<|message|>{ARGUMENTS}", Finish("stop"))
    assert ([piece.arguments for piece in pieces], finish) == ([ARGUMENTS], Finish("tool_calls"))
    assert calls.reasoning == ""
