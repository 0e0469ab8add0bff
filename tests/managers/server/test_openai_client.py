"""Real clients against a real server, unmodified: the openai package and curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import openai
import pytest

MODEL = "smollm2"
MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server_url):
    async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "sapwood"


def test_a_completion_and_its_stream_have_the_same_text(client):
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0)
    assert "Paris" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_chat_ends_by_itself_and_its_stream_finishes_once(client):
    request = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**request)
    choice = whole.choices[0]
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks)


def test_the_second_turn_finds_the_first_in_the_cache(client):
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20, temperature=0)
    turn = {"role": "assistant", "content": first.choices[0].message.content}
    messages = [*MESSAGES, turn, {"role": "user", "content": "And of Italy?"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, temperature=0)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens - 2 <= cached < second.usage.prompt_tokens


def test_several_samples_differ_and_a_seed_repeats_them(client):
    request = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "n": 3, "seed": 11, "temperature": 1.0}
    first, second = (client.chat.completions.create(**request) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts == [choice.message.content for choice in second.choices]


@pytest.mark.parametrize("top", [None, 0, 3])
@pytest.mark.parametrize("top_p", [1.0, 0.2])
def test_chat_logprobs_are_finite_and_belong_to_their_position(client, top, top_p):
    extra = {} if top is None else {"top_logprobs": top}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, logprobs=True, temperature=0, top_p=top_p, **extra
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert len(content) == answer.usage.completion_tokens == 6
    for entry in content:
        assert -20 < entry.logprob <= 0
        assert len(entry.top_logprobs) == (top or 0)
        if top:
            assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest at its own position"
            assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-6)


def test_completion_logprobs_with_echo_cover_the_prompt(client):
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, temperature=0, logprobs=2, echo=True)
    choice = answer.choices[0]
    assert choice.text.startswith(PROMPT)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert [choice.text[o:].startswith(t) for o, t in zip(choice.logprobs.text_offset, choice.logprobs.tokens)]
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + 2


async def test_many_at_once_each_get_their_own_answer(async_client):
    async def continued(number: int) -> str:
        prompt = f"{number}, {number + 1}, {number + 2},"
        answer = await async_client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0)
        return answer.choices[0].text

    numbers = [10, 20, 30, 40, 50, 60]
    together = await asyncio.gather(*(continued(number) for number in numbers))
    assert together == [await continued(number) for number in numbers]
    assert len(set(together)) == len(numbers)


async def test_async_streams_work(async_client):
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, temperature=0, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt=PROMPT, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("gpt-4")
    assert unknown.value.code == "model_not_found"
    assert client.chat.completions.create(model="gpt-4", messages=MESSAGES, max_tokens=1).model == MODEL
    with pytest.raises(openai.BadRequestError, match="no_such_field"):
        client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"no_such_field": 1})


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_needs_no_more_than_a_body(server_url):
    body = json.dumps({"messages": MESSAGES, "max_tokens": 3})
    done = subprocess.run(
        ["curl", "-sS", f"{server_url}/v1/chat/completions", "-d", body], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 3
