"""The openai package, unmodified: structured outputs and tool calls on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

MODEL = "smollm2"
ASK: Any = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


class City(BaseModel):
    name: str = Field(max_length=20)
    country: Literal["France", "Spain"]
    population: int | None


class Trip(BaseModel):
    """A schema with definitions, a list and an optional part."""

    cities: list[City] = Field(max_length=2)
    by: Literal["train", "car"]


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": PARAMETERS}}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time."}}


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("model", [City, Trip])
def test_parse_gives_an_object_of_the_class(client: openai.OpenAI, model: type[BaseModel]) -> None:
    for parse in (client.chat.completions.parse, client.beta.chat.completions.parse):
        messages: Any = [{"role": "user", "content": "Tell me of a trip to France, as JSON."}]
        answer = parse(model=MODEL, messages=messages, response_format=model, max_tokens=200, seed=3)
        assert isinstance(answer.choices[0].message.parsed, model)
        assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_answer_is_parsed_as_it_comes(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "A city?"}], response_format=City, max_tokens=120, seed=1
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)
    assert "".join(deltas) == final.choices[0].message.content


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello."}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, response_format={"type": "json_object"}, max_tokens=300, seed=2, n=2
    )
    for choice in answer.choices:
        assert choice.message.content is not None
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [({"regex": "(yes|no)!"}, {"yes!", "no!"}), ({"choice": ["red", "green"]}, {"red", "green"})],
)
def test_native_constraints_are_extra_fields(client: openai.OpenAI, fields: Any, allowed: set[str]) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=ASK, extra_body=fields, n=3)
    text = client.completions.create(model=MODEL, prompt="Well,", extra_body=fields, n=3)
    assert {choice.message.content for choice in chat.choices} <= allowed
    assert {choice.text for choice in text.choices} <= allowed


def test_what_was_relaxed_and_what_it_took_is_in_the_answer(client: openai.OpenAI) -> None:
    schema = {"type": "string", "format": "no-such-format", "maxLength": 8}
    answer = client.completions.create(
        model=MODEL, prompt="A word:", extra_body={"json_schema": schema, "strict": False}, max_tokens=40
    )
    extension: Any = answer.model_extra
    assert [each["keyword"] for each in extension["sapwood"]["relaxed"]] == ["format"]
    assert answer.usage is not None
    details: Any = answer.usage.completion_tokens_details
    assert details.sapwood["forward_passes"] >= 1
    assert (
        details.accepted_prediction_tokens + details.rejected_prediction_tokens == details.sapwood["speculated_tokens"]
    )


def test_a_schema_that_cannot_be_enforced_is_refused_by_keyword_and_pointer(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}
    for _ in range(2):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            )
        assert caught.value.param == "response_format"
        assert "/properties/a" in caught.value.message


# --- tools ------------------------------------------------------------------------------------------------------------


def checked_call(call: Any) -> None:
    assert call.id.startswith("call_")
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        jsonschema.validate(arguments, PARAMETERS)
    else:
        assert (call.function.name, arguments) == ("now", {})


@pytest.mark.parametrize("seed", range(4))
def test_required_tools_are_called_with_arguments_by_the_schema(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=[WEATHER, NOW],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        seed=seed,
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    checked_call(call)


def test_a_named_tool_is_the_one_that_is_called_in_every_sample(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=[NOW, WEATHER],
        tool_choice=choice,
        max_tokens=200,
        n=3,
    )
    ids = set()
    for each in answer.choices:
        message: Any = each.message
        [call] = message.tool_calls
        assert call.function.name == "get_weather"
        checked_call(call)
        ids.add(call.id)
    assert len(ids) == 3


def test_a_streamed_call_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    request: Any = {
        "model": MODEL,
        "messages": ASK,
        "tools": [WEATHER, NOW],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**request).choices[0]
    with client.chat.completions.stream(**request) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert whole.message.tool_calls is not None
    assert final.message.tool_calls is not None
    assert [(call.function.name, call.function.arguments) for call in final.message.tool_calls] == [
        (call.function.name, call.function.arguments) for call in whole.message.tool_calls
    ]
    assert names == [call.function.name for call in final.message.tool_calls]
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    chunks = list(client.chat.completions.create(**request, stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [bool(delta.id) for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert len(deltas) > 1, "arguments come in pieces"


def test_auto_leaves_the_model_free_to_call_or_not(client: openai.OpenAI) -> None:
    request: Any = {"model": MODEL, "tools": [WEATHER, NOW], "temperature": 0, "max_tokens": 120}
    free = client.chat.completions.create(messages=[{"role": "user", "content": "Say hello."}], **request).choices[0]
    assert free.finish_reason == "stop"
    assert free.message.content
    assert free.message.tool_calls is None
    history: list[Any] = []
    for i, city in enumerate(["Rome", "Madrid"]):
        call = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "celsius"})}
        history += [
            {"role": "user", "content": f"What is the weather in {city}, in celsius?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{i}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{i}", "content": "20"},
            {"role": "assistant", "content": f"It is 20 degrees in {city}."},
        ]
    called = client.chat.completions.create(messages=[*history, *ASK], **request).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.content is None
    [made] = called.message.tool_calls or []
    checked_call(made)
    assert json.loads(made.function.arguments)["city"] == "Paris"


def test_an_agents_loop_goes_round(client: openai.OpenAI) -> None:
    messages: list[Any] = list(ASK)
    tools: Any = [WEATHER]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, tool_choice="required", max_tokens=150, temperature=0
    )
    message = answer.choices[0].message
    assert message.tool_calls
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "17 degrees"} for call in message.tool_calls]
    last = client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, tool_choice="none", max_tokens=30, temperature=0
    )
    assert last.choices[0].message.content
    assert last.choices[0].message.tool_calls is None


def test_parse_gives_arguments_as_objects(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=ASK,
        tools=[openai.pydantic_function_tool(City)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        seed=5,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, City)
