"""The anthropic package, unmodified: messages, streams, tools, thinking off, counts and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

MODEL = "smollm2"
GREEDY = {"temperature": 0}  # this package has no such argument any more
ASK: Any = {
    "model": MODEL,
    "max_tokens": 16,
    "system": [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Name a colour."}],
}
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["unit"],
    },
}


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_streams_what_it_says_whole(client: Any) -> None:
    whole = client.messages.create(**ASK, extra_body=GREEDY)
    with client.messages.stream(**ASK, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens > 0, "the first one has left it in the cache"


async def test_the_async_client_streams(server_url: str) -> None:
    client = anthropic.AsyncAnthropic(base_url=server_url, api_key="none", max_retries=0)
    async with client, client.messages.stream(**ASK) as stream:
        text = "".join([each async for each in stream.text_stream])
        assert text == (await stream.get_final_message()).content[0].text


def test_a_tool_is_called_and_its_result_taken(client: Any) -> None:
    asked = {**ASK, "max_tokens": 100, "tools": [WEATHER], "extra_body": GREEDY}
    answer = client.messages.create(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, set(call.input)) == ("get_weather", {"unit"})
    with client.messages.stream(
        **asked, tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    ) as stream:
        [streamed] = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    last = client.messages.create(**{**asked, "messages": messages}, tool_choice={"type": "none"})
    assert last.content[0].text


def test_tokens_are_counted_as_they_are_used(client: Any) -> None:
    counted = client.messages.count_tokens(**{name: ASK[name] for name in ("model", "system", "messages")})
    usage = client.messages.create(**ASK).usage
    used = usage.input_tokens + usage.cache_read_input_tokens + (usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == used


def test_errors_are_of_the_packages_classes(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 9000}]})
    assert "8192" in str(caught.value)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ASK, "messages": []})
