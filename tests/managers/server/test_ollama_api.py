"""Ollama's endpoints in its shapes; where its client is installed, that is the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapwood.managers.server.ollama_api.ollama_bodies import OllamaChatBody
from sapwood.managers.wire.answers import Finish, ToolCallPiece

from .conftest import PROMPT_TOKENS, WORDS, Client, FakeFront
from .test_messages import ScriptedFront, chunk, constraint_of, script

CHAT: dict[str, Any] = {"model": "fake-model:latest", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = [
    chunk(reasoning="Hm."),
    chunk("I look."),
    chunk(calls=[ToolCallPiece(0, '{"a"', "c1", "look")]),
    chunk(calls=[ToolCallPiece(0, ": 1}"), ToolCallPiece(1, "{}", "c2", "look")]),
    chunk(finish=Finish("tool_calls")),
]


@pytest.fixture
def front() -> FakeFront:
    return ScriptedFront()


async def lines(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with client.session.post(client.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_streams_are_the_default_and_say_what_the_whole_says(client: Client) -> None:
    for path, body in (("/api/chat", CHAT), ("/api/generate", {"prompt": "hi"})):
        told = await lines(client, path, body)
        _, whole = await client.post(path, {**body, "stream": False})

        def text(line: dict[str, Any], path: str = path) -> str:
            return line["message"]["content"] if path == "/api/chat" else line["response"]

        assert "".join(map(text, told)) == text(whole) == "".join(WORDS)
        assert [each["done"] for each in told] == [False] * len(WORDS) + [True]
        for end in (told[-1], whole):
            assert (end["done"], end["done_reason"]) == (True, "stop")
            assert (end["prompt_eval_count"], end["eval_count"]) == (PROMPT_TOKENS, len(WORDS))
            assert all(isinstance(end[name], int) for name in ("total_duration", "load_duration", "eval_duration"))
            assert end["prompt_eval_duration"] + end["eval_duration"] == end["total_duration"]
        assert "eval_count" not in told[0]


async def test_calls_are_told_whole(client: Client) -> None:
    script(client, [*CALLS])
    told = await lines(client, "/api/chat", {**CHAT, "tools": [TOOL]})
    calls = [call for line in told for call in line["message"].get("tool_calls", [])]
    assert [(each["function"]["name"], each["function"]["arguments"]) for each in calls] == [
        ("look", {"a": 1}),
        ("look", {}),
    ]
    assert told[0]["message"]["thinking"] == "Hm."
    _, whole = await client.post("/api/chat", {**CHAT, "tools": [TOOL], "stream": False})
    assert whole["message"]["tool_calls"] == calls
    assert (whole["message"]["thinking"], whole["message"]["content"]) == ("Hm.", "I look.")


async def test_options_mean_what_they_mean_there(client: Client) -> None:
    options = {"num_predict": 3, "temperature": 0, "top_k": 5, "seed": 9, "stop": ["x"], "repeat_penalty": 1.5}
    advisory = {"num_ctx": 10, "num_thread": 8, "mirostat": 0}
    body = {**CHAT, "options": {**options, **advisory}, "keep_alive": "5m"}
    async with client.session.post(client.url + "/api/chat", json=body) as response:
        ignored = response.headers["X-Sapwood-Ignored-Fields"].split(", ")
        last = json.loads((await response.text()).splitlines()[-1])
    assert {*ignored} == {"keep_alive", "options.num_ctx", "options.num_thread", "options.mirostat"}
    assert last["done_reason"] == "length"
    sampling = client.front.submits[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.seed) == (3, 0, 5, 9)
    assert sampling.repetition_penalty == 1.5
    assert client.front.submits[-1].stop == ["x"]
    await lines(client, "/api/chat", {**CHAT, "options": {"num_predict": -1}})
    assert client.front.submits[-1].sampling.max_tokens == -1


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/api/chat", {"options": {"temperature": -1}}, "options.temperature"),
        ("/api/chat", {"options": {"num_ctx": 10**6}}, "options.num_ctx"),
        ("/api/chat", {"options": {"mirostat": 1}}, "options.mirostat"),
        ("/api/chat", {"options": {"repeat_penalty": 2, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ("/api/chat", {"options": {"n": 2}}, "options.n"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"odd": 1}, "odd"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
        ("/api/generate", {"prompt": "a", "template": "x"}, "template"),
        ("/api/generate", {"prompt": "a", "suffix": "x"}, "suffix"),
        ("/api/generate", {"prompt": "a", "raw": True, "context": [10**6]}, "context"),
    ],
)
async def test_what_is_refused_is_named(client: Client, path: str, body: dict[str, Any], named: str) -> None:
    status, answer = await client.post(path, {**(CHAT if path == "/api/chat" else {}), **body})
    assert status == 400
    assert [*answer] == ["error"]
    assert named in answer["error"]


async def test_a_raw_prompt_goes_on_from_tokens(client: Client) -> None:
    await lines(client, "/api/generate", {"prompt": "a", "raw": True, "context": [5, 6], "system": ""})
    assert client.front.submits[-1].prompt == [[5, 6], "a"]


async def test_formats(client: Client) -> None:
    await lines(client, "/api/chat", {**CHAT, "format": "json"})
    assert constraint_of(client).kind == "json_object"
    await lines(client, "/api/chat", {**CHAT, "format": {"type": "integer"}})
    assert json.loads(constraint_of(client).body) == {"type": "integer"}
    await lines(client, "/api/chat", {**CHAT, "format": ""})
    assert client.front.submits[-1].constraint is None


def test_calls_and_results_find_each_other() -> None:
    call = {"function": {"name": "look", "arguments": {}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "content": "1", "tool_name": "look"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    request, _, _ = OllamaChatBody(messages=messages).request(100)
    assert request.messages is not None
    called = [call["id"] for each in request.messages for call in each.get("tool_calls", [])]
    assert len({*called}) == 3
    assert [each["tool_call_id"] for each in request.messages if each["role"] == "tool"] == called


async def test_nothing_to_say_loads_the_model(client: Client) -> None:
    for path in ("/api/chat", "/api/generate"):
        status, answer = await client.post(path, {"model": "fake-model", "keep_alive": 0})
        assert (status, answer["done"], answer["done_reason"]) == (200, True, "unload")
    assert client.front.submits == []


async def test_what_is_not_done_here_says_so(client: Client) -> None:
    for path, status in (("embed", 404), ("embeddings", 404), ("pull", 404), ("create", 404), ("copy", 404)):
        found, answer = await client.post(f"/api/{path}", {})
        assert (found, [*answer]) == (status, ["error"])
        assert answer["error"].endswith(".")


async def test_ollamas_own_client(client: Client) -> None:
    ollama = pytest.importorskip("ollama")
    script(client, [*CALLS])
    asked = ollama.AsyncClient(host=client.url)
    whole = await asked.chat("fake-model", messages=CHAT["messages"], tools=[TOOL])
    assert [each.function.name for each in whole.message.tool_calls] == ["look", "look"]
    streamed = [each async for each in await asked.chat("fake-model", messages=CHAT["messages"], stream=True)]
    assert streamed[-1].done
    assert streamed[-1].eval_count == 5
