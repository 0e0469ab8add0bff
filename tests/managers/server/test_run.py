"""A server's life: port first, model second, and an orderly end whatever ends it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sapwood.managers.server.serving import PortTaken, Server, address_of, bind
from sapwood.runtime.errors import ModelError


@asynccontextmanager
async def running(front):
    """(task of the run, URL, session, event that is set when the server is ready)"""
    listener = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    server = Server(front, "fake-model", listener, lambda _: ready.set())
    task = asyncio.create_task(server.run())
    async with aiohttp.ClientSession() as session:
        yield task, address_of(listener), session, ready
        server.stop()
        await task


async def test_while_loading_the_port_answers_503_and_then_everything_works(front):
    front.gate.clear()
    async with running(front) as (_, url, session, ready):
        for method, path in (
            ("GET", "/health"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("POST", "/abort"),
        ):
            async with session.request(method, url + path, json={}) as response:
                assert response.status == 503
                assert "loading" in (await response.json())["error"]["message"]
        async with session.get(url + "/metrics") as response:
            assert "sapwood_engine_up 0.0" in await response.text()
        front.gate.set()
        await ready.wait()
        async with session.get(url + "/health") as response:
            assert response.status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_open_requests_with_an_error_and_frees_the_port(front, number, eventually):
    front.words, front.step_seconds = ["word "] * 10_000, 0.01
    async with running(front) as (task, url, session, ready):
        await ready.wait()
        body = {"prompt": "hi", "max_tokens": 9000}
        streamed = asyncio.create_task(session.post(url + "/v1/completions", json={**body, "stream": True}))
        whole = asyncio.create_task(session.post(url + "/v1/completions", json=body))
        await eventually(lambda: len(front.open) == 2)
        response = await streamed
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(task, 5) == 0
        last = (await response.read()).decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert (await whole).status == 503
        assert front.stopped
        bind("127.0.0.1", int(url.rpartition(":")[2])).close()


async def test_a_signal_while_loading_ends_it_with_code_0(front):
    front.gate.clear()
    async with running(front) as (task, _, _, _):
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 5) == 0
        assert front.stopped


async def test_a_dead_engine_answers_everyone_and_ends_the_server_with_code_1(front, eventually):
    front.gate.clear()
    async with running(front) as (task, url, session, ready):
        front.gate.set()
        await ready.wait()
        front.gate.clear()
        request = asyncio.create_task(session.post(url + "/generate", json={"prompt": "hi"}))
        await eventually(lambda: front.open)
        front.die("The worker process was killed by SIGKILL.")
        assert await asyncio.wait_for(task, 5) == 1
        response = await request
        assert response.status == 500
        assert "SIGKILL" in (await response.json())["error"]["message"]


async def test_a_lack_of_file_descriptors_is_one_line_and_other_complaints_are_whole(front, caplog):
    async with running(front) as (_, _, _, ready):
        await ready.wait()
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})
        loop.call_exception_handler({"message": "something else", "exception": OSError("else")})
    lack, other = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (lack.getMessage(), lack.exc_info) == ("cannot accept connections: Too many open files", None)
    assert other.exc_info


async def test_a_model_that_cannot_be_loaded_ends_the_server_with_code_1(front):
    front.start_error = ModelError("There is no model 'x'.")
    async with running(front) as (task, _, _, _):
        assert await asyncio.wait_for(task, 5) == 1


def test_a_taken_port_is_refused_in_one_sentence():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"Port {port} on 127\.0\.0\.1 is in use"):
            bind("127.0.0.1", port)
    with pytest.raises(PortTaken, match=r"no\.such\.host\.invalid"):
        bind("no.such.host.invalid", 0)


def test_the_address_of_a_listener_is_a_url():
    with bind("127.0.0.1", 0) as listener:
        assert address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    if socket.has_ipv6:
        with bind("::1", 0) as listener:
            assert address_of(listener).startswith("http://[::1]:")
