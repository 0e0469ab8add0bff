"""Tool loops of Python's agent libraries by their default settings: five calls, one after the other, and an answer.

Protocol and cache are what is tested; a proxy makes the model call by a script (see `scripted_proxy`).
"""

from __future__ import annotations

from typing import Any

import pytest

from ..scripted_proxy import Call, ScriptedProxy, answers_so_far, proxied

MODEL = "agent-model"
PLACES = ["Oslo", "Rome", "São Paulo", "Madrid", "New York"]
SCRIPT = [Call(("get_weather",), {"city": place, "day": i}) for i, place in enumerate(PLACES)]
TURNS = len(SCRIPT) + 1
QUESTION = "Compare the weather of five cities, one after the other."
INSTRUCTIONS = "You look up the weather with the tools that you have, and then compare. " * 8


def answer(city: str, day: int) -> str:
    return f"In {city} it is {10 + day} degrees, with a light wind and some clouds."


def check(proxy: ScriptedProxy, seen: list[tuple[str, int]], said: str, *, retold: bool = False) -> None:
    assert seen == [(place, i) for i, place in enumerate(PLACES)], proxy.trouble()
    assert said == proxy.final
    proxy.check_loop(TURNS)
    proxy.check_reuse(retold=retold)


def pydantic_openai() -> tuple[Any, Any]:
    """pydantic-ai's modules of models and of providers."""
    return pytest.importorskip("pydantic_ai.models.openai"), pytest.importorskip("pydantic_ai.providers.openai")


def test_pydantic_ai(agent_url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models, providers = pydantic_openai()

    seen: list[tuple[str, int]] = []
    with proxied(agent_url, SCRIPT) as proxy:
        model = models.OpenAIChatModel(
            MODEL, provider=providers.OpenAIProvider(base_url=f"{proxy.url}/v1", api_key="none")
        )
        agent = pydantic_ai.Agent(model, instructions=INSTRUCTIONS)

        @agent.tool_plain
        def get_weather(city: str, day: int) -> str:
            """The weather of a city.

            Args:
                city: its name.
                day: days from today.
            """
            seen.append((city, day))
            return answer(city, day)

        said = agent.run_sync(QUESTION).output
        check(proxy, seen, said)


def test_pydantic_ai_by_responses(agent_url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models, providers = pydantic_openai()

    seen: list[tuple[str, int]] = []
    with proxied(agent_url, SCRIPT) as proxy:
        model = models.OpenAIResponsesModel(
            MODEL, provider=providers.OpenAIProvider(base_url=f"{proxy.url}/v1", api_key="none")
        )
        agent = pydantic_ai.Agent(model, instructions=INSTRUCTIONS)

        @agent.tool_plain
        def get_weather(city: str, day: int) -> str:
            """The weather of a city."""
            seen.append((city, day))
            return answer(city, day)

        said = agent.run_sync(QUESTION).output
        check(proxy, seen, said)


def test_anthropics_tool_runner(agent_url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    seen: list[tuple[str, int]] = []

    @anthropic.beta_tool
    def get_weather(city: str, day: int) -> str:
        """The weather of a city.

        Args:
            city: its name.
            day: days from today.
        """
        seen.append((city, day))
        return answer(city, day)

    with proxied(agent_url, SCRIPT) as proxy, anthropic.Anthropic(base_url=proxy.url, api_key="none") as client:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=500,
            system=INSTRUCTIONS,
            tools=[get_weather],
            messages=[{"role": "user", "content": QUESTION}],
        )
        said = runner.until_done().content[-1].text
        first = proxy.turns.pop(0)  # asks for a conversation that the server holds, and goes on without when told
        assert (first.status, "thread_unsupported_request" in first.answer) == (400, True)
        check(proxy, seen, said)
        assert {turn.path for turn in proxy.turns} == {"/v1/messages"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_agents(agent_url: str, monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    agents = pytest.importorskip("agents")
    seen: list[tuple[str, int]] = []

    @agents.function_tool
    def get_weather(city: str, day: int) -> str:
        """The weather of a city.

        Args:
            city: its name.
            day: days from today.
        """
        seen.append((city, day))
        return answer(city, day)

    with proxied(agent_url, SCRIPT) as proxy:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{proxy.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        agents.set_default_openai_client(__import__("openai").AsyncOpenAI(), use_for_tracing=False)
        agent = agents.Agent(name="Weather", instructions=INSTRUCTIONS, tools=[get_weather], model=MODEL)
        if streamed:
            result: Any = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, QUESTION)
        check(proxy, seen, result.final_output)
        assert {turn.path for turn in proxy.turns} == {"/v1/responses"}, "the library's default"


@pytest.mark.parametrize("responses", [False, True])
def test_langgraph(agent_url: str, responses: bool) -> None:
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    langchain_openai = pytest.importorskip("langchain_openai")
    from langchain_core.tools import tool

    seen: list[tuple[str, int]] = []

    @tool
    def get_weather(city: str, day: int) -> str:
        """The weather of a city."""
        seen.append((city, day))
        return answer(city, day)

    with proxied(agent_url, SCRIPT) as proxy:
        more: Any = {"use_responses_api": True} if responses else {}
        chat = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{proxy.url}/v1", api_key="none", **more)
        agent = prebuilt.create_react_agent(chat, [get_weather], prompt=INSTRUCTIONS)
        state = agent.invoke({"messages": [("user", QUESTION)]})
        content = state["messages"][-1].content
        check(proxy, seen, content if isinstance(content, str) else content[0]["text"])


@pytest.mark.parametrize("streamed", [False, True])
def test_smolagents(agent_url: str, streamed: bool) -> None:
    smolagents = pytest.importorskip("smolagents")
    seen: list[tuple[str, int]] = []

    @smolagents.tool
    def get_weather(city: str, day: int) -> str:
        """The weather of a city.

        Args:
            city: its name.
            day: days from today.
        """
        seen.append((city, day))
        return answer(city, day)

    script = [*SCRIPT, Call(("final_answer",), {"answer": "All done."})]
    with proxied(agent_url, script, count=answers_so_far) as proxy:
        model = smolagents.OpenAIModel(model_id=MODEL, api_base=f"{proxy.url}/v1", api_key="none")
        agent = smolagents.ToolCallingAgent(
            tools=[get_weather], model=model, stream_outputs=streamed, verbosity_level=0
        )
        check(proxy, seen, agent.run(QUESTION), retold=True)
