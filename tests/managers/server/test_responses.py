"""/v1/responses over a front that answers from a script: its shapes, its events, and what it refuses."""

from __future__ import annotations

import json

import pytest

from .responses_support import ALL_KINDS, CUSTOM, FUNCTION, PATH, SPACE, create, events_of, scripted, without_ids


async def test_a_text_is_answered_and_streamed_alike(client):
    whole = await create(client, max_output_tokens=4)
    assert whole["object"] == "response"
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    (message,) = whole["output"]
    assert (message["type"], message["status"]) == ("message", "incomplete")
    assert message["content"][0]["text"] == "Once upon a time"
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 3
    events = await events_of(client, max_output_tokens=4)
    kinds = [each["type"] for each in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"
    ]  # fmt: skip
    assert kinds[4:-4] == ["response.output_text.delta"] * 4
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"
    ]  # fmt: skip
    assert without_ids(events[-1]["response"]) == without_ids(whole)


@pytest.mark.parametrize("logprobs", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}])
async def test_every_kind_of_output_has_its_events_and_they_add_up(client, front, logprobs):
    scripted(front, *ALL_KINDS)
    body = {"tools": [FUNCTION, CUSTOM, SPACE], **logprobs}
    whole = await create(client, **body)
    assert [item["type"] for item in whole["output"]] == [
        "reasoning", "message", "function_call", "custom_tool_call", "function_call"
    ]  # fmt: skip
    reasoning, message, look, patch, read = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "I look."
    assert (look["call_id"], look["name"], look["arguments"]) == ("call_1", "look", '{"a":1}')
    assert (patch["call_id"], patch["input"]) == ("call_2", "aa")
    assert (read["namespace"], read["name"], read["arguments"]) == ("fs", "read", "{}")
    assert len(message["content"][0]["logprobs"]) == (3 if logprobs else 0)
    events = await events_of(client, **body)
    final = events[-1]["response"]
    assert without_ids(final) == without_ids(whole)
    deltas: dict[str, str] = {}
    tokens = []
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
            tokens += event.get("logprobs", [])
    assert list(deltas.values()) == ["Let me see.", "I look.", '{"a":1}', "aa", "{}"]
    assert list(deltas) == [item["id"] for item in final["output"]]
    assert tokens == final["output"][1]["content"][0]["logprobs"]
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done]
    assert done == final["output"]
    assert [e["name"] for e in events if e["type"] == "response.function_call_arguments.done"] == ["look", "read"]


async def test_a_completion_without_text_has_an_empty_message(client, front):
    scripted(front, {"finish": "stop"})
    whole = await create(client)
    assert whole["output"][0]["content"][0]["text"] == ""
    assert whole["status"] == "completed"
    events = await events_of(client)
    assert "response.output_text.done" in [each["type"] for each in events]


async def test_what_was_asked_is_told(client):
    asked = {
        "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.25, "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False, "store": False,
        "max_output_tokens": 3, "truncation": "disabled",
    }  # fmt: skip
    whole = await create(client, **asked)
    for name, value in asked.items():
        if name != "tools":
            assert whole[name] == value, name
    assert whole["tools"][0]["name"] == "look"
    assert whole["error"] is None


async def test_items_become_messages(client, front):
    items = [
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "A", "annotations": []}, {"type": "refusal", "refusal": "!"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "aa"},
        {"type": "function_call", "call_id": "c3", "namespace": "fs", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "O1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "O2"}]},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]},
        {"type": "function_call", "call_id": "c4", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c4", "output": "O4"},
    ]  # fmt: skip
    await create(client, input=items, instructions="I", tools=[FUNCTION, CUSTOM, SPACE])
    messages = front.submits[-1].chat.messages
    assert [each["role"] for each in messages] == [
        "system", "developer", "user", "assistant", "tool", "tool", "tool", "assistant", "tool"
    ]  # fmt: skip
    assert messages[0]["content"] == "I"
    assert (messages[3]["content"], messages[3]["reasoning_content"]) == ("A!", "R")
    calls = [(call["id"], call["function"]["name"]) for call in messages[3]["tool_calls"]]
    assert calls == [("c1", "look"), ("c2", "patch"), ("c3", "fs.read")]
    assert [each["content"] for each in messages[4:7]] == ["O1", "O2", ""]
    assert messages[7]["reasoning_content"] == "S"
    assert {tool["function"]["name"] for tool in front.submits[-1].chat.tools} == {"look", "patch", "fs.read"}


async def test_thoughts_come_back_sealed_and_are_understood(client, front):
    scripted(front, {"reasoning": "Hm — é"}, {"text": "A", "finish": "stop"})
    include = ["reasoning.encrypted_content"]
    first = await create(client, store=False, include=include)
    item = {key: value for key, value in first["output"][0].items() if key != "content"}
    assert "Hm" not in item["encrypted_content"]
    await create(client, input=[{"role": "user", "content": "U"}, item, first["output"][1]], store=False)
    assert front.submits[-1].chat.messages[1]["reasoning_content"] == "Hm — é"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, {**FUNCTION, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "x"}}]}, "tools[0].format.syntax"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [FUNCTION, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"background": True, "store": False}, "background"),
        ({"include": ["all"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"n": 2}, "n"),
        ({"truncation": "some"}, "truncation"),
        ({"temperature": -1}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_as_the_body_has_it(client, body, field):
    status, answer = await client.post(PATH, {"input": "Hello", **body})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert answer["error"]["type"] == "invalid_request_error"


async def test_tools_of_other_servers_are_left_out_beside_others_and_listed(client, front):
    body = {"input": "x", "tools": [{"type": "web_search"}, FUNCTION, {"type": "local_shell"}], "user": "me"}
    async with client.session.post(client.url + PATH, json=body) as response:
        answer = await response.json()
        assert response.headers["X-Sapwood-Ignored-Fields"] == "user, tools.web_search, tools.local_shell"
    assert [tool["type"] for tool in answer["tools"]] == ["function"]
    assert len(front.submits[-1].chat.tools) == 1


async def test_allowed_tools_and_formats_mean_what_they_mean_for_chat(client, front):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}
    await create(client, tools=[FUNCTION, CUSTOM], tool_choice=choice)
    chat = front.submits[-1].chat
    assert (chat.tool_choice, chat.allowed) == ("required", ["patch"])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await create(client, text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}})
    assert json.loads(front.submits[-1].constraint.body) == schema
