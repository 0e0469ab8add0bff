"""What chat bodies say of thinking, and how the answers show it: by a front whose model thinks, or does not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.server.openai.bodies import ChatBody
from sapwood.managers.wire.answers import Effort, Finish, TextChunk
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.lifecycle import ReasoningInfo
from sapwood.managers.wire.requests import ReasoningOptions, Submit
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
HEADER = "X-Sapwood-Ignored-Fields"
THINKS = ReasoningInfo("think", takes_switch=True)
ONLY_MARKS = ReasoningInfo("think")


def options(model: ReasoningInfo, **fields: Any) -> ReasoningOptions:
    body = msgspec.convert({"messages": USER, **fields}, ChatBody)
    chat = to_submit(body.requests()[0], vocab_size=100, defaults=OPENAI_DEFAULTS, reasoning=model).chat
    assert chat is not None
    return chat.reasoning


@pytest.mark.fast
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ReasoningOptions()),
        ({"reasoning_effort": "high"}, ReasoningOptions(enabled=True, effort="high")),
        ({"reasoning_effort": "none"}, ReasoningOptions(enabled=False)),
        ({"enable_thinking": False}, ReasoningOptions(enabled=False)),
        ({"enable_thinking": True, "reasoning_effort": "low"}, ReasoningOptions(enabled=True, effort="low")),
        ({"thinking_budget": 0}, ReasoningOptions(budget=0)),
        ({"reasoning": {"effort": "xhigh", "exclude": True}}, ReasoningOptions(True, "xhigh", include=False)),
        ({"reasoning": {"enabled": False}}, ReasoningOptions(enabled=False)),
        ({"reasoning": {"max_tokens": 9}, "thinking_budget": 9}, ReasoningOptions(budget=9)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ReasoningOptions(enabled=True, budget=1024)),
        ({"thinking": {"type": "disabled"}}, ReasoningOptions(enabled=False)),
        ({"thinking": {"type": "adaptive"}}, ReasoningOptions()),
        ({"separate_reasoning": False}, ReasoningOptions(separate=False)),
        ({"include_reasoning": False}, ReasoningOptions(include=False)),
        ({"reasoning_format": "raw"}, ReasoningOptions(separate=False)),
        ({"reasoning_format": "hidden"}, ReasoningOptions(include=False)),
        ({"reasoning_format": "deepseek"}, ReasoningOptions()),
        ({"reasoning": None, "thinking": None, "reasoning_effort": None}, ReasoningOptions()),
    ],
)
def test_every_spelling_means_what_it_means_elsewhere(fields: dict[str, Any], expected: ReasoningOptions) -> None:
    assert options(THINKS, **fields) == expected


@pytest.mark.fast
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking"),
        ({"reasoning_effort": "low", "enable_thinking": False}, "enable_thinking"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"thinking_budget": 3, "thinking": {"type": "enabled", "budget_tokens": 4}}, "thinking.budget_tokens"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"reasoning_format": "xml"}, "reasoning_format"),
        ({"reasoning_format": "hidden", "include_reasoning": True}, "reasoning_format"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(THINKS, **fields)
    assert caught.value.field == field


@pytest.mark.fast
@pytest.mark.parametrize("fields", [{"reasoning_effort": "low"}, {"enable_thinking": True}])
def test_only_a_model_that_thinks_can_be_told_to(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="this model does not think"):
        options(ReasoningInfo(), **fields)


@pytest.mark.parametrize(
    ("model", "fields", "ignored"),
    [
        (ReasoningInfo(), {"reasoning_effort": "none"}, "reasoning_effort"),
        (ReasoningInfo(), {"reasoning": {"effort": "none", "max_tokens": 5}}, "reasoning.effort, reasoning.max_tokens"),
        (ReasoningInfo(), {"enable_thinking": False, "thinking_budget": 7}, "enable_thinking, thinking_budget"),
        (THINKS, {"reasoning_effort": "none", "thinking_budget": 7}, None),
        (THINKS, {"reasoning_effort": "high"}, None),
        (ONLY_MARKS, {"reasoning_effort": "high", "thinking_budget": 7}, "reasoning_effort"),
        (ONLY_MARKS, {"reasoning_effort": "none"}, None),
    ],
)
async def test_what_has_no_effect_is_listed(client, front, model, fields, ignored):
    front.info.reasoning = model
    body = {"messages": USER, **fields}
    async with client.session.post(client.url + CHAT, json=body) as response:
        assert response.status == 200
        assert response.headers.get(HEADER) == ignored


def thoughtful(submit: Submit) -> list[Any]:
    def chunk(text: str, thought: str, count: int, **last: Any) -> TextChunk:
        shown = {"reasoning": thought, "reasoning_tokens": min(count, 2)}
        return TextChunk(submit.request_id, 0, text, [count], 7, 3, count, [], **shown, **last)

    end = {"finish": Finish("stop"), "effort": Effort()}
    return [chunk("", "so ", 1), chunk("yes", "it is", 2), chunk("!", "", 3, **end)]


async def test_answers_show_the_thinking_beside_the_answer(client, front):
    front.script = thoughtful
    _, whole = await client.post(CHAT, {"messages": USER})
    message = whole["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes!", "so it is")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    events = await client.events(CHAT, {"messages": USER, "stream": True})
    deltas = [json.loads(each)["choices"][0]["delta"] for each in events[:-1]]
    said = [{key: value for key, value in each.items() if key != "role"} for each in deltas]
    assert said == [
        {"content": ""},
        {"reasoning_content": "so "},
        {"reasoning_content": "it is"},
        {"content": "yes"},
        {"content": "!"},
        {},
    ]


async def test_generate_shows_it_too(client, front):
    front.script = thoughtful
    _, whole = await client.post("/generate", {"messages": USER})
    choice = whole["choices"][0]
    assert (choice["text"], choice["reasoning"], choice["reasoning_tokens"]) == ("yes!", "so it is", 2)


async def test_models_say_what_they_do_about_thinking(client, front):
    _, plain = await client.get("/v1/models")
    assert "thinking" not in plain["data"][0]
    front.info.reasoning = THINKS
    _, thinks = await client.get("/v1/models")
    expected = {"marks": "think", "takes_switch": True, "takes_effort": False, "keeps_earlier": False}
    assert thinks["data"][0]["thinking"] == expected


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_earlier_thinking_is_text(client, name):
    turn = {"role": "assistant", "content": "yes", name: ["no"]}
    status, answer = await client.post(CHAT, {"messages": [*USER, turn, *USER]})
    assert (status, answer["error"]["param"]) == (400, f"messages[1].{name}")
    status, _ = await client.post(CHAT, {"messages": [*USER, {**turn, name: "why"}, *USER]})
    assert status == 200


@pytest.mark.parametrize(
    ("fields", "expected", "ignored"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            ReasoningOptions(enabled=True, budget=1024),
            "thinking.type, thinking.budget_tokens",
        ),
        ({"thinking": {"type": "disabled"}}, ReasoningOptions(enabled=False), "thinking.type"),
        ({"thinking": {"type": "adaptive"}}, ReasoningOptions(), None),
        ({"output_config": {"effort": "max"}}, ReasoningOptions(True, "xhigh"), "output_config.effort"),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            ReasoningOptions(enabled=False),
            "thinking.type",
        ),
    ],
)
async def test_anthropics_fields_say_it_too(client, front, fields, expected, ignored):
    submits: list[Submit] = []

    def script(submit: Submit) -> list[Any]:
        submits.append(submit)
        return thoughtful(submit)

    front.script = script
    body = {"messages": USER, "max_tokens": 9, **fields}
    for model, listed in ((THINKS, None), (ReasoningInfo(), ignored)):
        front.info.reasoning = model
        async with client.session.post(client.url + "/v1/messages", json=body) as response:
            assert response.status == 200
            assert response.headers.get(HEADER) == listed
        assert submits[-1].chat is not None
        assert submits[-1].chat.reasoning == expected
