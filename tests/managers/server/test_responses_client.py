"""/v1/responses by OpenAI's own client, unmodified, against a real server: its calls, and tokens that are never read
twice."""

from __future__ import annotations

import json
import time

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

MODEL = "smollm2"
QUESTION = "What is the capital of France? Answer in one sentence."
LOOK = {
    "type": "function",
    "name": "look_up",
    "description": "Look up a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "year": {"type": "integer"}},
        "required": ["city", "year"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server_url):
    async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def counts(response: Response) -> tuple[int, int, int]:
    usage = response.usage
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens


def test_a_response_and_its_stream_are_the_same(client):
    request = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 40}
    whole = client.responses.create(**request)
    assert "Paris" in whole.output_text
    assert whole.status == "completed"
    with client.responses.stream(**request) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert len(deltas) > 1


def test_an_answer_is_parsed(client):
    class City(BaseModel):
        name: str
        population: int

    answer = client.responses.parse(
        model=MODEL, input="Invent a city.", text_format=City, temperature=0, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, City)


async def test_the_same_with_the_asynchronous_client(async_client):
    first = await async_client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=8)
    async with async_client.responses.stream(
        model=MODEL, input="Go on.", previous_response_id=first.id, temperature=0, max_output_tokens=8
    ) as stream:
        kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.incomplete"
    assert (await async_client.responses.retrieve(first.id)).output_text == first.output_text
    items = [item.type async for item in async_client.responses.input_items.list(first.id)]
    assert items == ["message"]
    await async_client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(first.id)


@pytest.mark.parametrize("streams", [False, True])
def test_no_token_of_an_earlier_turn_is_computed_again(client, streams):
    """Text forced letter by letter is in tokens that nobody would encode it to. What the last turn computed is its
    prompt and all it generated, mostly but the very last token, which no step has read."""
    earlier = 0
    previous = {}
    for turn in range(4):
        response = client.responses.create(
            model=MODEL,
            input=f"Turn {turn}, é🚲: go on.",
            max_output_tokens=(24, 5, 40, 9)[turn],
            temperature=1.5,
            stream=streams,
            extra_body={"regex": "([A-Z][a-z]?[ -]){3,}x", "seed": turn, "cache_salt": f"streams {streams}"},
            **previous,
        )
        if streams:
            response = list(response)[-1].response
        prompt, cached, generated = counts(response)
        if earlier:
            assert earlier - 1 <= cached <= earlier
        earlier, previous = prompt + generated, {"previous_response_id": response.id}


@pytest.mark.parametrize("limit", [200, 25])
def test_calls_of_tools_are_not_computed_again_either(client, limit):
    """Whole ones and cut ones: the template writes their JSON otherwise than the model did."""
    first = client.responses.create(
        model=MODEL, input="Look.", tools=[LOOK], tool_choice="required", temperature=0, max_output_tokens=limit
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "Nothing is there."}]
    second = client.responses.create(
        model=MODEL, input=outputs, tools=[LOOK], previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    prompt, _, generated = counts(first)
    if limit > 25:
        assert first.status == "completed"
        assert set(json.loads(call.arguments)) == {"city", "year"}
    else:
        assert (first.status, call.status) == ("incomplete", "incomplete")
    assert prompt + generated - 1 <= counts(second)[1] <= prompt + generated


def test_other_instructions_are_heeded_and_read_anew(client):
    first = client.responses.create(model=MODEL, input=QUESTION, instructions="Be terse.", max_output_tokens=8)
    second = client.responses.create(
        model=MODEL, input="And?", instructions="Sing.", previous_response_id=first.id, max_output_tokens=4
    )
    assert counts(second)[1] < counts(first)[0]
    third = client.responses.create(
        model=MODEL, input="And?", instructions="Sing.", previous_response_id=second.id, max_output_tokens=4
    )
    assert 0 <= counts(second)[0] + counts(second)[2] - counts(third)[1] <= 1


def test_input_is_counted_without_answering_it(client):
    asked = {"model": MODEL, "input": QUESTION, "instructions": "Be terse.", "tools": [LOOK]}
    counted = client.responses.input_tokens.count(**asked)
    assert counted.input_tokens == counts(client.responses.create(**asked, max_output_tokens=1))[0]


def test_the_background_goes_on_by_itself(client):
    begun = client.responses.create(model=MODEL, input="Tell.", background=True, max_output_tokens=30, temperature=0)
    assert begun.status in ("queued", "in_progress")
    deadline = time.monotonic() + 60
    while (response := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert response.status in ("completed", "incomplete")
    events = list(client.responses.retrieve(begun.id, stream=True, starting_after=3))
    assert events[0].sequence_number == 4
    assert events[-1].response.output_text == response.output_text


def test_what_is_cancelled_can_be_gone_on_from_without_computing_it_again(client):
    stream = client.responses.create(
        model=MODEL, input="Tell.", background=True, stream=True, max_output_tokens=800, extra_body={"ignore_eos": True}
    )
    response_id = ""
    with stream:
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.sequence_number == 12:
                break
    cancelled = client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    prompt, _, generated = counts(cancelled)
    assert 0 < generated < 800
    after = client.responses.create(
        model=MODEL, input="Stop.", previous_response_id=response_id, max_output_tokens=4, temperature=0
    )
    assert prompt + generated - 2 <= counts(after)[1] <= prompt + generated  # the step under way may be lost


def test_errors_are_those_that_the_client_knows(client):
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.content\[0\]\.type"):
        client.responses.create(model=MODEL, input=[{"role": "user", "content": [{"type": "input_image"}]}])
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="x " * 3000)
    assert caught.value.param == "input"
