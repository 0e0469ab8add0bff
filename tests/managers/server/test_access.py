"""API keys: who is answered, what the refusal looks like, and that keys share no cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sapwood.managers.server.access import Access, read_keys
from sapwood.managers.server.app import make_runner
from sapwood.managers.server.server_state import ServerState
from sapwood.managers.wire.errors import ConfigError

KEYS = ["sk-first", "sk-second"]
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture
async def url(front: Any) -> AsyncIterator[str]:
    state = ServerState(front, "fake-model", access=Access(KEYS))
    state.set_phase("ready", "")
    runner = make_runner(state)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(url: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any, Any]:
    async with aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, url + path, json=body, headers=headers) as response:
            return response.status, await response.json(), response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-first"},
        {"Authorization": "bearer  sk-second "},
        {"x-api-key": "sk-second"},
        {"Authorization": "Basic c2s6", "x-api-key": "sk-first"},
    ],
)
async def test_a_key_is_let_in_by_either_header(url: str, headers: dict[str, str]) -> None:
    status, answer, _ = await ask(url, "/v1/chat/completions", headers, CHAT)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Once upon")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "sk-first"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer sk-firs"},
        {"Authorization": "Bearer sk-first2"},
        {"Authorization": "Bearer SK-FIRST"},
        {"Authorization": "Bearer sk-first,sk-second"},
        {"Authorization": "Bearer wrong", "x-api-key": "sk-first"},
        {"x-api-key": ""},
        {"x-api-key": "sk-f\u00fcrst"},
    ],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/models", None), ("/metrics", None), ("/nowhere", None), ("/generate", {})],
)
async def test_anything_else_is_refused_before_anything_is_done(
    url: str, front: Any, headers: dict[str, str], path: str, body: Any
) -> None:
    status, answer, got = await ask(url, path, headers, body)
    assert (status, got["WWW-Authenticate"]) == (401, "Bearer")
    assert (answer["error"]["type"], answer["error"]["code"]) == ("authentication_error", "invalid_api_key")
    assert all(key not in str(answer) for key in KEYS)
    assert not front.submits


async def test_messages_has_a_refusal_of_its_own_form(url: str) -> None:
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    status, answer, _ = await ask(url, "/v1/messages", {}, body)
    assert (status, answer["type"], answer["error"]["type"]) == (401, "error", "authentication_error")


async def test_health_needs_no_key(url: str) -> None:
    assert (await ask(url, "/health", {}))[0] == 200


async def test_each_key_has_a_cache_of_its_own_with_the_clients_salts_in_it(url: str, front: Any) -> None:
    for key in KEYS:
        for salt in ("", "a"):
            body = {**CHAT, "cache_salt": salt}
            assert (await ask(url, "/v1/chat/completions", {"x-api-key": key}, body))[0] == 200
    assert (await ask(url, "/generate", {"x-api-key": KEYS[0]}, {"prompt": "x"}))[0] == 200
    names = [submit.namespace for submit in front.submits]
    assert len(set(names)) == 4
    assert names[4] == names[0], "one key, one cache, whatever the endpoint"
    assert not any(key in name for key in KEYS for name in names), "the log may show a namespace, never a key"


async def test_without_keys_everybody_is_answered_and_salts_are_as_sent(client: Any, front: Any) -> None:
    assert (await client.post("/v1/chat/completions", {**CHAT, "cache_salt": "s"}))[0] == 200
    status, _ = await client.post("/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer any"})
    assert (status, [submit.namespace for submit in front.submits]) == (200, ["s", ""])


def test_keys_come_from_options_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-a\n\n  sk-b  \n")
    assert read_keys(["sk-c"], str(file)) == ["sk-c", "sk-a", "sk-b"]
    assert read_keys([], None) == []


@pytest.mark.parametrize(
    ("given", "text"), [([""], None), (["a b"], None), (["é"], None), ([], "# nothing\n"), ([], None)]
)
def test_keys_that_no_client_could_send_are_refused(tmp_path: Path, given: list[str], text: str | None) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match="--api-key"):
        read_keys(given, None if given else str(file))


async def test_a_thread_is_refused_as_anthropics_clients_know_it(client: Any) -> None:
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "thread": {"type": "create"}}
    status, answer = await client.post("/v1/messages", body)
    assert status == 400
    assert answer["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    status, answer = await client.post("/v1/messages", {**body, "thread": None, "temperature": -1})
    assert (status, "details" in answer["error"]) == (400, False)
