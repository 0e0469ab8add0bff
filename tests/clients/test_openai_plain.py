"""The openai package, unmodified and by its defaults: plain answers, streams and errors of every endpoint it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

MODEL = "smollm2"
ASK: Any = [
    {"role": "developer", "content": "You are brief."},
    {"role": "user", "content": "Name a colour."},
]


class Colour(BaseModel):
    name: str = Field(max_length=12)
    warm: bool


WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_streams_what_it_says_whole(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "max_completion_tokens": 12, "seed": 4, "temperature": 0.7}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    last = [each for each in chunks if each.choices][-1].choices[0]
    assert (last.finish_reason, last.delta.content) == (whole.choices[0].finish_reason, None)


def test_a_completion_goes_on_and_stops(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0, logprobs=2)
    assert answer.choices[0].logprobs is not None
    assert "".join(answer.choices[0].logprobs.tokens or []) == answer.choices[0].text


async def test_the_async_client_streams_a_chat_and_a_response(server_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        text = ""
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=10, temperature=0, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        assert text
        said = ""
        async with client.responses.stream(
            model=MODEL, input=ASK, extra_body={"regex": "(Red|Dark green)\\."}
        ) as stream:
            async for event in stream:
                said += event.delta if event.type == "response.output_text.delta" else ""
            final = await stream.get_final_response()
        assert said == final.output_text
        assert said in ("Red.", "Dark green.")


def test_a_response_goes_on_from_the_one_before_and_reads_nothing_again(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "instructions": "You are brief.", "max_output_tokens": 16}
    first = client.responses.create(input="A tree?", **asked)
    second = client.responses.create(input="Another?", previous_response_id=first.id, **asked)
    assert first.usage is not None
    assert second.usage is not None
    assert second.previous_response_id == first.id
    kept = first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens >= kept - 1
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_a_response_is_parsed(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input="A colour, as JSON.", text_format=Colour, max_output_tokens=80, temperature=0
    )
    assert isinstance(answer.output_parsed, Colour)


def test_a_response_calls_a_tool_and_takes_its_output(client: openai.OpenAI) -> None:
    given: Any = [{"role": "user", "content": "What is the weather?"}]
    answer = client.responses.create(
        model=MODEL, input=given, tools=[WEATHER], tool_choice="required", max_output_tokens=100, temperature=0
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather"]
    given += [*answer.output, {"type": "function_call_output", "call_id": calls[0].call_id, "output": "20 degrees"}]
    last = client.responses.create(
        model=MODEL, input=given, tools=[WEATHER], tool_choice="none", max_output_tokens=16, temperature=0
    )
    assert last.output_text


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_too_long_a_prompt_is_told_as_the_package_knows_it(client: openai.OpenAI, endpoint: str) -> None:
    messages: Any = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError) as caught:
        _ = (
            client.chat.completions.create(model=MODEL, messages=messages)
            if endpoint == "chat"
            else client.responses.create(model=MODEL, input=messages)
        )
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in caught.value.message
