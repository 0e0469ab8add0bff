"""litellm, unmodified: its OpenAI and Anthropic providers and its bridges between the three APIs."""

from __future__ import annotations

from typing import Any

import pytest

litellm = pytest.importorskip("litellm")

ASK = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name a colour."}]
PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": PARAMETERS}}
PROVIDERS = ["openai/smollm2", "hosted_vllm/smollm2", "openai/responses/smollm2", "anthropic/smollm2"]


def options(server_url: str, model: str) -> dict[str, Any]:
    base = server_url if model.startswith("anthropic/") else f"{server_url}/v1"
    return {"model": model, "api_base": base, "api_key": "none", "num_retries": 0}


@pytest.mark.parametrize("model", PROVIDERS)
def test_every_provider_answers_and_streams(server_url: str, model: str) -> None:
    asked = {**options(server_url, model), "messages": ASK, "max_tokens": 16, "temperature": 0}
    whole = litellm.completion(**asked)
    text = "".join(each.choices[0].delta.content or "" for each in litellm.completion(**asked, stream=True))
    assert text == whole.choices[0].message.content != ""
    assert whole.usage.prompt_tokens > 0


@pytest.mark.parametrize("model", PROVIDERS)
def test_every_provider_calls_tools(server_url: str, model: str) -> None:
    asked = {**options(server_url, model), "max_tokens": 100, "temperature": 0, "tools": [WEATHER]}
    answer = litellm.completion(messages=ASK, tool_choice="required", **asked)
    message = answer.choices[0].message
    assert {call.function.name for call in message.tool_calls} == {"get_weather"}
    results = [{"role": "tool", "tool_call_id": call.id, "content": "20"} for call in message.tool_calls]
    last = litellm.completion(messages=[*ASK, message.model_dump(), *results], tool_choice="none", **asked)
    assert last.choices[0].message.content


async def test_the_async_call_streams(server_url: str) -> None:
    text = ""
    stream = await litellm.acompletion(
        **options(server_url, PROVIDERS[0]), messages=ASK, max_tokens=8, temperature=0, stream=True
    )
    async for each in stream:
        text += each.choices[0].delta.content or ""
    assert text


@pytest.mark.parametrize("model", ["openai/smollm2", "hosted_vllm/smollm2"])
async def test_the_messages_bridge_speaks_to_a_chat_endpoint(server_url: str, model: str) -> None:
    answer = await litellm.anthropic.messages.acreate(
        **{key: value for key, value in options(server_url, model).items() if key != "num_retries"},
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=16,
    )
    assert answer["content"][0]["text"]


@pytest.mark.parametrize("model", ["openai/smollm2", "hosted_vllm/smollm2"])
def test_responses_natively_and_by_the_bridge(server_url: str, model: str) -> None:
    answer = litellm.responses(input="Name a colour.", max_output_tokens=16, **options(server_url, model))
    assert answer.output[0].content[0].text


def test_text_completion(server_url: str) -> None:
    asked = options(server_url, "text-completion-openai/smollm2")
    assert litellm.text_completion(prompt="One, two,", max_tokens=6, **asked).choices[0].text


def test_too_long_a_prompt_is_known_as_that(server_url: str) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            **options(server_url, "openai/smollm2"), messages=[{"role": "user", "content": "word " * 9000}]
        )
