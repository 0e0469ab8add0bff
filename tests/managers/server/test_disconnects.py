"""A client that goes away, or does not read, leaves nothing running; /abort ends a request for everyone to see."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

BODIES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/generate": {"prompt": "hi"},
    "/score": {"prompt": "hi", "continuations": ["a"]},
}


async def hang_up(client, path, body, when):
    """Send a request over a connection of its own and close it as soon as `when()` has been awaited."""
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(session.post(client.url + path, json=body))
        await when()
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_before_the_first_token_aborts(client, front, eventually, path, stream):
    front.gate.clear()
    body = BODIES[path] if path == "/score" else {**BODIES[path], "stream": stream}
    await hang_up(client, path, body, lambda: eventually(lambda: front.open))
    await eventually(lambda: not front.open)
    assert len(front.left_early) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["one", ["several", "prompts", "here"]])
async def test_hanging_up_in_the_middle_aborts(client, front, eventually, stream, prompt):
    front.words = ["word "] * 10_000
    front.step_seconds = 0.005
    body = {"prompt": prompt, "max_tokens": 9000, "stream": stream}
    await hang_up(client, "/v1/completions", body, lambda: asyncio.sleep(0.1))
    await eventually(lambda: not front.open)
    assert len(front.left_early) == (1 if prompt == "one" else 3)
    assert (await client.get("/health"))[0] == 200


async def test_a_reset_connection_aborts_too(client, front, eventually):
    front.gate.clear()
    port = int(client.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": "hi"})
    writer.write(f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await eventually(lambda: front.open)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.close()
    await eventually(lambda: not front.open)


async def test_random_hang_ups_leave_nothing_open_and_the_next_request_works(client, front, eventually):
    front.words = ["word "] * 1000
    front.step_seconds = 0.002

    async def one(i):
        body = {"prompt": "hi", "max_tokens": 900, "stream": i % 2 == 0}
        await hang_up(client, "/v1/completions", body, lambda: asyncio.sleep(0.004 * (i % 25)))

    await asyncio.gather(*(one(i) for i in range(50)))
    await eventually(lambda: not front.open)
    front.step_seconds = 0.0
    status, answer = await client.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
    assert (status, answer["choices"][0]["text"]) == (200, "word word ")


async def test_a_client_that_does_not_read_is_dropped_after_the_bound(client, front, eventually, caplog):
    front.words = ["x" * 65536] * 1000
    port = int(client.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stalled:
        body = json.dumps({"prompt": "hi", "max_tokens": 1000, "stream": True})
        stalled.sendall(f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await eventually(lambda: front.open)
        await eventually(lambda: not front.open)
    assert len(front.left_early) == 1
    await asyncio.sleep(0.05)  # for what the server may still log
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("stream", [False, True])
async def test_abort_ends_a_request_with_an_error_for_its_sender(client, front, eventually, stream):
    front.words = ["word "] * 1000
    front.step_seconds = 0.01
    body = {"prompt": ["a", "b"], "max_tokens": 900, "stream": stream, "request_id": "mine"}
    if stream:
        request = asyncio.create_task(client.events("/v1/completions", body))
    else:
        request = asyncio.create_task(client.post("/v1/completions", body))
    await eventually(lambda: len(front.open) == 2)
    await asyncio.sleep(0.05)
    assert await client.post("/abort", {"request_id": "mine"}) == (200, {"request_id": "mine", "aborted": True})
    answer = await request
    error = json.loads(answer[-1])["error"] if stream else answer[1]["error"]
    assert error["code"] == "request_aborted"
    assert stream or answer[0] == 409
    await eventually(lambda: not front.open)
    status, answer = await client.post("/abort", {"request_id": "mine"})
    assert (status, answer["error"]["param"]) == (404, "request_id")
