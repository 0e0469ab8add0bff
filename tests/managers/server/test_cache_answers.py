"""Why was this not cached? What an answer says of it where asked, and the log always."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from sapwood.managers.wire.answers import CacheReport, MovedLine

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
REPORT = CacheReport(2, "never_seen", 1, "user", 17, "old text", "new text", elsewhere=400)
TOLD = {
    "cached_tokens": 3,
    "position": 2,
    "reason": "never_seen",
    "message": {"index": 1, "role": "user"},
    "character": 17,
    "cached_text": "old text",
    "prompt_text": "new text",
    "moved_lines": [],
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "a"}),
    ("/generate", {"prompt": "a"}),
]


def told(answer: dict[str, Any]) -> Any:
    return answer.get("sapwood", answer).get("cache")


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_an_answer_says_it_where_asked_and_only_there(client, front, path, body):
    front.cache = REPORT
    status, answer = await client.post(path, {**body, "explain_cache": True})
    assert (status, told(answer)) == (200, TOLD)
    for asked in ({}, {"explain_cache": False}):
        _, answer = await client.post(path, {**body, **asked})
        assert "cache" not in answer
        assert "sapwood" not in answer
    status, answer = await client.post(path, {**body, "explain_cache": "yes"})
    assert (status, answer["error"]["param"]) == (400, "explain_cache")


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_stream_says_it_once_with_its_first_event(client, front, path, body):
    front.cache = REPORT
    events = await client.events(path, {**body, "n": 2, "explain_cache": True})
    found = [told(json.loads(event)) for event in events if event != "[DONE]"]
    assert found[0] == TOLD
    assert not any(found[1:])
    events = await client.events(path, body)
    assert not any(told(json.loads(event)) for event in events if event != "[DONE]")


async def test_it_stands_beside_what_a_constraint_lets_pass(client, front):
    front.cache = REPORT
    _, answer = await client.post(*BODIES[0][:1], {**BODIES[0][1], "explain_cache": True, "regex": "a"})
    assert answer["sapwood"] == {"relaxed": [], "cache": TOLD}
    events = await client.events(*BODIES[0][:1], {**BODIES[0][1], "explain_cache": True, "regex": "a"})
    assert json.loads(events[0])["sapwood"] == {"relaxed": [], "cache": TOLD}


async def test_of_several_prompts_each_is_explained(client, front):
    front.cache = REPORT
    body = {"prompt": ["a", "b", "c"], "explain_cache": True}
    _, answer = await client.post("/v1/completions", body)
    assert told(answer) == [TOLD] * 3
    front.words = ["", "b"]  # an event that has nothing else to say
    events = [json.loads(event) for event in (await client.events("/v1/completions", body))[:-1]]
    assert sorted(event["choices"][0]["index"] for event in events if told(event) == TOLD) == [0, 1, 2]


async def test_no_client_learns_what_another_salt_holds_but_the_log_says_it(client, front, caplog):
    caplog.set_level(logging.INFO, logger="sapwood.server")
    front.cache = REPORT
    async with client.session.post(client.url + "/generate", json={"prompt": "a", "explain_cache": True}) as response:
        assert "400" not in await response.text()
    await client.post("/v1/completions", {"prompt": ["a"] * 6})
    first, second = [record.getMessage() for record in caplog.records if record.name == "sapwood.server"]
    assert "(3 cached; left the cached path at 2 in message 1 (user): never_seen, " in first
    assert "400 tokens are cached under another salt)" in first
    assert "text" not in first, "the log quotes nobody"
    assert second.count("left the cached path") == 4, "of very many prompts a few are enough"


MOVED = [MovedLine("date", 0, 0, "Today is 2026-12-01"), MovedLine("attribution", 0, 1, "x-a: b")]
DROPPED = [MovedLine("attribution", 0, None, "x-a: b")]


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_lines_that_were_moved_or_dropped_are_in_the_headers_of_that_answer_alone(
    client, front, caplog, path, body, stream
):
    caplog.set_level(logging.INFO, logger="sapwood.server")

    async def headers() -> dict[str, str]:
        async with client.session.post(client.url + path, json={**body, "stream": stream}) as response:
            await response.read()
            return {name: value for name, value in response.headers.items() if name.endswith(("-Lines", "-Kinds"))}

    front.cache = CacheReport(2, "never_seen", moved=MOVED)
    assert await headers() == {"X-Sapwood-Moved-Lines": "2", "X-Sapwood-Moved-Kinds": "date, attribution"}
    front.cache = CacheReport(2, "never_seen", moved=DROPPED)
    assert await headers() == {"X-Sapwood-Dropped-Lines": "1", "X-Sapwood-Dropped-Kinds": "attribution"}
    front.cache = CacheReport(2, "never_seen")
    assert await headers() == {}
    first, second, _ = [record.getMessage() for record in caplog.records if record.name == "sapwood.server"]
    assert "never_seen, date moved, attribution moved)" in first
    assert "never_seen, attribution dropped)" in second


async def test_moved_lines_are_told_where_the_cache_is_explained(client, front):
    front.cache = CacheReport(2, "never_seen", moved=MOVED)
    _, answer = await client.post(BODIES[0][0], {**BODIES[0][1], "explain_cache": True})
    assert told(answer)["moved_lines"] == [
        {"kind": "date", "message": 0, "to": 0, "line": "Today is 2026-12-01"},
        {"kind": "attribution", "message": 0, "to": 1, "line": "x-a: b"},
    ]
