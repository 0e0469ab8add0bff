"""llama-index, pydantic-ai, dspy, smolagents, llm and ollama's client, unmodified, on a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

MODEL = "smollm2"


class Colour(BaseModel):
    """A colour."""

    name: str = Field(max_length=12)
    warm: bool


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


# --- llama-index ------------------------------------------------------------------------------------------------------


def test_llama_index_chats_completes_and_streams(server_url: str) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    message = pytest.importorskip("llama_index.core.llms").ChatMessage
    llm = like.OpenAILike(
        model=MODEL, api_base=f"{server_url}/v1", api_key="none", is_chat_model=True, max_tokens=12, temperature=0
    )
    ask = [message(role="system", content="You are brief."), message(role="user", content="Name a colour.")]
    whole = llm.chat(ask).message.content
    assert "".join(each.delta or "" for each in llm.stream_chat(ask)) == whole
    assert whole
    text = like.OpenAILike(model=MODEL, api_base=f"{server_url}/v1", api_key="none", max_tokens=8, is_chat_model=False)
    assert text.complete("One, two, three,").text


def test_llama_index_calls_tools_and_extracts(server_url: str) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    tools = pytest.importorskip("llama_index.core.tools")
    llm = like.OpenAILike(
        model=MODEL,
        api_base=f"{server_url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=100,
        temperature=0,
    )
    tool = tools.FunctionTool.from_defaults(multiply)
    answer = llm.chat_with_tools([tool], user_msg="What is 6 times 7?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    assert {call.tool_name for call in calls} == {"multiply"}
    assert isinstance(llm.as_structured_llm(Colour).complete("A colour?").raw, Colour)


def test_llama_indexs_openai_class_by_responses(server_url: str) -> None:
    openai_llms = pytest.importorskip("llama_index.llms.openai")
    llm = openai_llms.OpenAIResponses(
        model="gpt-4o-mini", api_base=f"{server_url}/v1", api_key="none", max_output_tokens=16, max_retries=0
    )
    assert llm.complete("Name a colour.").text


# --- pydantic-ai ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_answers_streams_and_gives_objects(server_url: str, kind: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(
        base_url=f"{server_url}/v1", api_key="none"
    )
    settings: Any = {"max_tokens": 100, "temperature": 0.0}
    model = getattr(models, kind)(MODEL, provider=provider, settings=settings)
    async with pydantic_ai.Agent(model, instructions="You are brief.").run_stream("Name a colour.") as result:
        assert await result.get_output()
    for output in (Colour, pydantic_ai.NativeOutput(Colour)):
        said = await pydantic_ai.Agent(model, output_type=output).run("A colour, please.")
        assert isinstance(said.output, Colour)


# --- dspy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["chat", "text", "responses"])
def test_dspy_asks_by_every_endpoint(server_url: str, model_type: str) -> None:
    dspy = pytest.importorskip("dspy")
    name = "text-completion-openai/smollm2" if model_type == "text" else "openai/smollm2"
    lm = dspy.LM(name, api_base=f"{server_url}/v1", api_key="none", model_type=model_type, max_tokens=20, cache=False)
    [said] = lm("Name a colour.")
    assert said if isinstance(said, str) else said["text"]


def test_dspy_gets_typed_answers_by_its_json_adapter(server_url: str) -> None:
    dspy = pytest.importorskip("dspy")
    lm = dspy.LM("openai/smollm2", api_base=f"{server_url}/v1", api_key="none", max_tokens=200, cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict("review: str -> positive: bool, stars: int")(review="What a wonderful film!")
    assert isinstance(answer.positive, bool)
    assert isinstance(answer.stars, int)


# --- smolagents -------------------------------------------------------------------------------------------------------


def test_smolagents_model_answers_and_streams(server_url: str) -> None:
    smolagents = pytest.importorskip("smolagents")
    model = smolagents.OpenAIModel(
        model_id=MODEL, api_base=f"{server_url}/v1", api_key="none", max_tokens=12, temperature=0
    )
    ask = [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": "Name a colour."}])]
    whole = model.generate(ask).content
    assert "".join(each.content or "" for each in model.generate_stream(ask)) == whole
    assert whole


# --- llm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_llm_asks_from_the_command_line(server_url: str, tmp_path: Path, stream: bool) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: sapwood\n  model_name: {MODEL}\n  api_base: {server_url}/v1\n"
        "  supports_schema: true\n  supports_tools: true\n"
    )
    import os

    env = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", "-m", "sapwood", "-s", "You are brief.", "-o", "max_tokens", "12"]
    command += ["Name a colour."] + ([] if stream else ["--no-stream"])
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    schema = [sys.executable, "-m", "llm", "-m", "sapwood", "--schema", "name, warm bool", "-o", "max_tokens", "100"]
    done = subprocess.run([*schema, "A colour?"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lstrip().startswith('{"name')


# --- ollama -----------------------------------------------------------------------------------------------------------


def test_ollamas_client_chats_streams_generates_and_lists(server_url: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server_url)
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Name a colour."}]}
    greedy = {"temperature": 0, "num_predict": 12}
    whole = client.chat(**ask, options=greedy)
    assert whole.done
    streamed = "".join(each.message.content or "" for each in client.chat(**ask, options=greedy, stream=True))
    assert streamed == whole.message.content != ""
    assert client.generate(model=MODEL, prompt="A tree?", options=greedy).response
    assert [each.model for each in client.list().models] == [f"{MODEL}:latest"]
    assert client.show(MODEL).details is not None
    assert client.ps().models
    with pytest.raises(ollama.ResponseError):
        client.embed(model=MODEL, input="x")


def test_ollamas_client_calls_tools_and_obeys_a_format(server_url: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server_url)
    ask: Any = {"model": MODEL, "options": {"temperature": 0, "num_predict": 100}}
    answer = client.chat(messages=[{"role": "user", "content": "A colour?"}], format=Colour.model_json_schema(), **ask)
    assert isinstance(Colour.model_validate_json(answer.message.content or ""), Colour)
    messages: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
    said = client.chat(messages=messages, tools=[multiply], **ask).message
    messages += [said, {"role": "tool", "tool_name": "multiply", "content": "42"}]
    assert client.chat(messages=messages, tools=[multiply], **ask).done
