"""What is not HTTP gets the API's own error, and who does not finish a request is sent away; nobody else is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from sapwood.managers.server.reading import LARGE_BODY_BYTES

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"prompt":"hi","max_tokens":1}'
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
SECONDS = 0.5  # see the fixture `client`

Talk = Callable[..., Awaitable[bytes]]


@pytest.fixture
def talk(client) -> Talk:
    """Send parts with a pause after each, then read until the server closes (or for so many seconds)."""

    async def talk(*parts: bytes, pause: float = 0.05, patience: float = 5.0) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(pause)
        received = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(patience):
                while data := await reader.read(65536):
                    received += data
                received += b"<closed>"
        writer.close()
        return received

    return talk


def error_of(answer: bytes, status: int) -> dict[str, Any]:
    """The JSON error of an answer that is the connection's last."""
    head, _, body = answer.removesuffix(b"<closed>").partition(b"\r\n\r\n")
    assert answer.endswith(b"<closed>"), answer
    assert head.split(b" ")[1] == str(status).encode(), answer
    assert b"Content-Type: application/json" in head
    return json.loads(body)["error"]


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"ffffffffffffffffff\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 500 + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200,
    ],
    ids=lambda data: repr(data[-30:]),
)
async def test_what_is_not_http_is_a_json_error(client, talk, data):
    error = error_of(await talk(data), 400)
    assert (error["type"], error["code"]) == ("invalid_request_error", "bad_http")
    assert len(error["message"]) < 220
    assert "\n" not in error["message"]
    assert "aaaa" not in error["message"]
    assert (await client.get("/health"))[0] == 200


async def test_a_chunk_that_goes_wrong_after_the_head_is_the_clients_fault_too(talk, caplog, front):
    error = error_of(await talk(CHUNKED, b"zz\r\n"), 400)
    assert error["code"] == "bad_http"
    assert not front.submits
    assert not any(record.exc_info for record in caplog.records)


async def test_an_expectation_that_is_not_met_is_a_json_error(client):
    status, answer = await client.post("/abort", data=b"{}", headers={"Expect": "wonders"})
    assert (status, answer["error"]["type"]) == (417, "invalid_request_error")


@pytest.mark.parametrize("parts", [[b"G"], [HEAD], [b"GET /health HTTP/1.1\r\n"] + [b"X: y\r\n"] * 15])
@pytest.mark.alone
async def test_a_head_that_does_not_end_is_a_408_and_the_end(talk, parts):
    began = time.monotonic()
    error = error_of(await talk(*parts, pause=0.02), 408)
    assert "head" in error["message"]
    assert SECONDS <= time.monotonic() - began < SECONDS + 2


async def test_a_second_head_that_does_not_end_is_a_408_too(talk):
    answer = await talk(WHOLE, b"POST /v1/comp")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 408") == 1
    assert answer.endswith(b"<closed>")


async def test_a_connection_that_never_says_anything_is_closed(talk):
    assert await talk() == b"<closed>"


async def test_a_body_that_stops_arriving_is_a_408_and_the_end(talk, front):
    for head in (HEAD + b"Content-Length: 99\r\n\r\n", CHUNKED + b"40\r\n"):
        answer = await talk(head, BODY, patience=SECONDS + 2)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b'"code":"body_timeout"' in answer
    assert not front.submits


async def test_who_is_slow_but_goes_on_is_served(talk):
    parts = [BODY[i : i + 1] for i in range(len(BODY))]
    answer = await talk(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY), *parts, pause=0.04, patience=0.3)
    assert answer.startswith(b"HTTP/1.1 200")


async def test_keeping_a_connection_open_between_requests_is_no_fault(talk):
    answer = await talk(WHOLE, WHOLE, WHOLE, pause=2 * SECONDS, patience=0.1)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert not answer.endswith(b"<closed>")


async def test_a_long_answer_is_not_cut_off(client, front):
    front.words, front.step_seconds = ["word "] * 20, 0.1
    events = await client.events("/v1/completions", {"prompt": "hi", "max_tokens": 20})
    assert events[-1] == "[DONE]"
    assert len(events) > 20


@pytest.mark.alone
async def test_a_large_body_holds_up_nobody(client):
    data = b'{"prompt":[' + b"1," * 1_000_000 + b"1]}"
    assert len(data) > LARGE_BODY_BYTES
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    status, _ = await client.post("/v1/completions", data=data)
    took = time.perf_counter() - began
    running = False
    await watching
    assert status == 200
    assert longest < 0.7 * took, (longest, took)
