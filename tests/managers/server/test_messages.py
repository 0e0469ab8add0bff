"""/v1/messages and count_tokens in Anthropic's shapes; where its client is installed, its types are the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sapwood.constrained.spec import Constraint
from sapwood.managers.server.messages_api.message_blocks import MessageList, sealed
from sapwood.managers.server.messages_api.message_stream import MessageEvent
from sapwood.managers.wire.answers import Finish, TextChunk, ToolCallPiece
from sapwood.managers.wire.errors import InvalidRequest, RequestFailed
from sapwood.managers.wire.requests import Chat, Submit

from .conftest import CACHED_TOKENS, PROMPT_TOKENS, WORDS, Client, FakeFront

BODY: dict[str, Any] = {"model": "fake-model", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def chunk(
    text: str = "", *, calls: list[ToolCallPiece] | None = None, finish: Finish | None = None, **more: Any
) -> Any:
    def made(submit: Submit) -> TextChunk:
        ids = [1] if text or calls or more else []
        counts = (PROMPT_TOKENS, CACHED_TOKENS, 5)
        return TextChunk(submit.request_id, 0, text, ids, *counts, [], finish=finish, tool_calls=calls or [], **more)

    return made


class ScriptedFront(FakeFront):
    """Says what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[Callable[[Submit], TextChunk] | Exception] = []

    def script(self, submit: Submit) -> list[Any]:
        if not self.says:
            return super().script(submit)
        return [each if isinstance(each, Exception) else each(submit) for each in self.says]


@pytest.fixture
def front() -> FakeFront:
    return ScriptedFront()


def script(client: Client, says: list[Any]) -> None:
    assert isinstance(client.front, ScriptedFront)
    client.front.says = says


def chat_of(client: Client) -> Chat:
    chat = client.front.submits[-1].chat
    assert chat is not None
    return chat


def constraint_of(client: Client) -> Constraint:
    constraint = client.front.submits[-1].constraint
    assert constraint is not None
    return constraint


CALLS = [
    chunk(reasoning="Hm"),
    chunk(reasoning="m."),
    chunk("I "),
    chunk("look."),
    chunk(calls=[ToolCallPiece(0, '{"a"', "call_1", "look")]),
    chunk(calls=[ToolCallPiece(0, ": 1}"), ToolCallPiece(1, "{}", "call_2", "look")]),
    chunk(finish=Finish("tool_calls")),
]


async def events(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with client.session.post(client.url + "/v1/messages", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        text = (await response.read()).decode()
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        msgspec.json.decode(data.removeprefix("data: "), type=MessageEvent)
        found.append(told)
    return found


def gathered(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that the events make, as a client puts it together."""
    content: list[dict[str, Any]] = []
    opened = None
    for event in told:
        if event["type"] == "content_block_start":
            assert opened is None
            assert event["index"] == len(content)
            opened = event["index"]
            content.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == opened
            delta, block = event["delta"], content[-1]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                block["json"] += delta["partial_json"]
        elif event["type"] == "content_block_stop":
            assert event["index"] == opened
            opened = None
            text = content[-1].pop("json")
            if text:
                content[-1]["input"] = json.loads(text)
    assert opened is None
    return content


async def test_a_whole_message(client: Client) -> None:
    status, answer = await client.post("/v1/messages?beta=true", BODY)
    assert status == 200
    assert answer["id"].startswith("msg_")
    assert {key: answer[key] for key in ("type", "role", "model", "stop_reason", "stop_sequence", "content")} == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "content": [{"type": "text", "text": "".join(WORDS), "citations": None}],
    }
    usage = answer["usage"]
    assert usage["input_tokens"] == PROMPT_TOKENS - CACHED_TOKENS
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (CACHED_TOKENS, 0)
    assert usage["output_tokens"] == len(WORDS)
    status, answer = await client.post("/v1/messages", {**BODY, "max_tokens": 2})
    assert (answer["stop_reason"], answer["content"][0]["text"]) == ("max_tokens", "".join(WORDS[:2]))


async def test_thinking_text_and_calls_whole_and_streamed(client: Client) -> None:
    script(client, [*CALLS])
    body = {**BODY, "tools": [TOOL]}
    _, answer = await client.post("/v1/messages", body)
    assert answer["stop_reason"] == "tool_use"
    assert [each["type"] for each in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["content"][0]["thinking"] == "Hmm."
    assert answer["content"][2] == {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": 1}}
    told = await events(client, body)
    assert gathered(told) == answer["content"]
    kinds = [each["type"] for each in told]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert told[0]["message"]["content"] == []
    assert told[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert told[-2]["usage"]["output_tokens"] == 5


async def test_thinking_that_is_not_shown_comes_back_sealed(client: Client) -> None:
    script(client, [*CALLS])
    body = {**BODY, "tools": [TOOL], "thinking": {"type": "adaptive", "display": "omitted"}}
    _, answer = await client.post("/v1/messages", body)
    block = answer["content"][0]
    assert (block["thinking"], block["signature"]) == ("", sealed("Hmm."))
    assert gathered(await events(client, body)) == answer["content"]
    turns = [*BODY["messages"], {"role": "assistant", "content": answer["content"][:2]}, *BODY["messages"]]
    await client.post("/v1/messages", {**BODY, "messages": turns})
    assert chat_of(client).messages[1]["reasoning_content"] == "Hmm."


async def test_stop_sequences(client: Client) -> None:
    script(client, [chunk("a", finish=Finish("stop", "END"))])
    _, answer = await client.post("/v1/messages", {**BODY, "stop_sequences": ["END"]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
    assert client.front.submits[-1].stop == ["END"]
    assert (await events(client, {**BODY, "stop_sequences": ["END"]}))[-2]["delta"]["stop_sequence"] == "END"


async def test_a_call_that_was_cut_off_keeps_its_text(client: Client) -> None:
    script(client, [chunk(calls=[ToolCallPiece(0, '{"a": [1,', "c", "look")], finish=Finish("length"))])
    _, answer = await client.post("/v1/messages", {**BODY, "tools": [TOOL]})
    assert answer["content"][0]["input"] == {"INVALID_JSON": '{"a": [1,'}


async def test_an_error_in_a_stream_is_an_event(client: Client) -> None:
    script(client, [chunk("a"), RequestFailed("It broke.")])
    told = await events(client, BODY)
    assert told[-1] == {"type": "error", "error": {"type": "api_error", "message": "It broke."}, "request_id": None}


def test_a_conversation_with_every_kind_of_block() -> None:
    made = MessageList()
    made.begin(
        [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}]
    )
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": "ü"}}
    made.add(
        [
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "T", "signature": "s"}, call]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and now?"},
                ],
            },
            {"role": "assistant", "content": "Well"},
        ]
    )
    function = {"name": "look", "arguments": {"a": "ü"}}
    assert made.messages == [
        {"role": "system", "content": "Be kind.\nB"},
        {"role": "user", "content": "x\ny"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "T",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "Error: no", "tool_call_id": "t1"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "Well"},
    ]
    assert made.continues


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": {}, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": {}}]}], "messages[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": {}}]}],
            "messages[0].content[0].tool_use_id",
        ),
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "document", "source": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "odd": 1}]}], "messages[0].content[0].odd"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}], "messages[1].content"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}],
            "messages[0]",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                }
            ],
            "messages[0].content[0].content[0].type",
        ),
    ],
)
def test_what_is_refused_is_named(messages: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MessageList().add(messages)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "often"}}, "tool_choice.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n must be 1"),
        ({"odd": 1}, "odd"),
    ],
)
async def test_bodies_that_are_refused(client: Client, extra: dict[str, Any], named: str) -> None:
    status, answer = await client.post("/v1/messages", {**BODY, **extra})
    assert status == 400, answer
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert named in answer["error"]["message"]


async def test_fields_become_what_they_mean(client: Client) -> None:
    body = {**BODY, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True}}
    async with client.session.post(
        client.url + "/v1/messages", json={**body, "metadata": {"user_id": "u"}}
    ) as response:
        assert response.headers["X-Sapwood-Ignored-Fields"] == "metadata"
        assert response.headers["Request-Id"] == (await response.json())["id"]
    chat = chat_of(client)
    assert (chat.tool_choice, chat.allowed, chat.parallel_tool_calls) == ("required", ["look"], False)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.post("/v1/messages", {**BODY, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert json.loads(constraint_of(client).body) == schema
    prefill = [*BODY["messages"], {"role": "assistant", "content": "So"}]
    await client.post("/v1/messages", {**BODY, "messages": prefill})
    chat = chat_of(client)
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)


async def test_unknown_paths_of_it_and_methods(client: Client) -> None:
    async with client.session.get(client.url + "/v1/messages") as response:
        assert response.status == 405
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_anthropics_own_client_reads_every_event(client: Client) -> None:
    anthropic = pytest.importorskip("anthropic")
    script(client, [*CALLS])
    async with anthropic.AsyncAnthropic(base_url=client.url, api_key="x", max_retries=0) as asked:
        fields: dict[str, Any] = {**BODY, "tools": [TOOL]}
        whole = await asked.messages.create(**fields)
        async with asked.messages.stream(**fields) as stream:
            final = await stream.get_final_message()
        assert [each.model_dump() for each in final.content] == [each.model_dump() for each in whole.content]
        assert whole.stop_reason == final.stop_reason == "tool_use"
        with pytest.raises(anthropic.BadRequestError):
            await asked.messages.create(**{**fields, "max_tokens": -5})
