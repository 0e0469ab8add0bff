"""Tools and tool_choice at the door: custom tools, allowed tools, and what is refused by which name."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.render import RenderRequest, render_to_chat
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.requests import Chat, CustomFormat
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

pytestmark = pytest.mark.fast

USER = [{"role": "user", "content": "x"}]
F = {"type": "function", "function": {"name": "f"}}
LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": LARK}}
NOTE = {"type": "custom", "custom": {"name": "note"}}


def chat(**fields: Any) -> Chat:
    made = to_submit(GenerateRequest(**{"messages": USER, **fields}), vocab_size=100, defaults=OPENAI_DEFAULTS).chat
    assert made is not None
    return made


def test_a_custom_tool_is_a_function_with_one_text_for_the_template() -> None:
    made = chat(tools=[F, PATCH, NOTE])
    assert made.custom == {"patch": CustomFormat("lark", 'start: "a"'), "note": CustomFormat()}
    assert made.tools is not None
    assert made.tools[0] == F
    patch, note = (tool["function"] for tool in made.tools[1:])
    assert (patch["name"], patch["description"]) == ("patch", "Edits.")
    assert 'start: "a"' in patch["parameters"]["properties"]["input"]["description"]
    assert note["parameters"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert render_to_chat(RenderRequest(messages=USER, tools=[F, PATCH, NOTE]), vocab_size=9).tools == made.tools


def test_calls_of_custom_tools_in_the_history_are_calls_of_functions() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "note", "input": 'say "é"\n'}}
    plain = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call, plain]}
    [_, made] = chat(messages=[*USER, turn], tools=[F, NOTE]).messages
    function = {"name": "note", "arguments": '{"input": "say \\"é\\"\\n"}'}
    assert made["tool_calls"] == [{"id": "c1", "type": "function", "function": function}, plain]
    assert turn["tool_calls"][0] == call


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "custom", "custom": {"name": "note"}}, ("required", ["note"], False)),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [F, {"type": "custom", "custom": {"name": "note"}}]},
            },
            ("auto", ["f", "note"], True),
        ),
    ],
)
def test_custom_tools_can_be_chosen(choice: Any, expected: tuple[Any, ...]) -> None:
    made = chat(tools=[F, NOTE], tool_choice=choice)
    assert (made.tool_choice, made.allowed, made.parallel_tool_calls) == expected


def allowed(**said: Any) -> dict[str, Any]:
    return {"tools": [F], "tool_choice": {"type": "allowed_tools", "allowed_tools": said}}


CALL = {"id": "c", "type": "custom", "custom": {"name": "note", "input": 5}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (allowed(mode="auto"), "tool_choice.allowed_tools"),
        (allowed(mode="auto", tools=[]), "tool_choice.allowed_tools"),
        (allowed(mode="none", tools=[F]), "tool_choice.allowed_tools.mode"),
        (allowed(tools=[F]), "tool_choice.allowed_tools.mode"),
        (allowed(mode="auto", tools=[F, {"type": "function"}]), "tool_choice.allowed_tools.tools[1]"),
        (
            allowed(mode="auto", tools=[{"type": "function", "function": {"name": "g"}}]),
            "tool_choice.allowed_tools.tools[0]",
        ),
        ({"tools": [F], "tool_choice": {"type": "custom", "custom": {"name": "g"}}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
        ({"tools": [F, {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].custom.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "g", "format": 1}}]}, "tools[0].custom.format"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "g", "format": {"type": "grammar"}}}]},
            "tools[0].custom.format.grammar",
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "g",
                            "format": {"type": "grammar", "grammar": {"syntax": "x", "definition": "y"}},
                        },
                    }
                ]
            },
            "tools[0].custom.format.grammar.syntax",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "g", "description": 7}}]},
            "tools[0].function.description",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "tool_calls": [CALL]}], "tools": [NOTE]},
            "messages[1].tool_calls[0].custom.input",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.field == field
    assert field in str(caught.value)
