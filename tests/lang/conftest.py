"""A backend from a script for what needs no model, and the shared server for what does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from sapwood.lang.backends.base import Backend, Completed, Emit, Judged, Sample, TokenCounts
from sapwood.lang.backends.endpoint import RuntimeEndpoint
from sapwood.lang.defaults import set_default_backend
from sapwood.lang.history import History, plain_text
from sapwood.lang.ir import Gen, GenOptions, Role, Select
from sapwood.lang.running.loop import loop_thread
from sapwood.lang.words.choices import Scored, ScoredToken


class Scripted(Backend):
    """Answers with `answer(prompt, options)`, an exception of which fails the step; keeps what it was asked.

    gate: closed, it holds every request back. aborted counts those that were cancelled on their way.
    """

    name = "a script"

    def __init__(self) -> None:
        self.answer: Callable[[str, GenOptions], str] = lambda prompt, options: f"<{len(prompt)}>"
        self.prompts: list[str] = []
        self.options: list[GenOptions] = []
        self.gate = threading.Event()
        self.gate.set()
        self.seconds = 0.0
        self.open = self.most_open = self.aborted = 0

    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        pass

    def check_select(self, select: Select, role: Role | None) -> None:
        pass

    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        prompt = plain_text(history)
        self.prompts.append(prompt)
        self.options.append(options)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while not self.gate.is_set():  # noqa: ASYNC110 (tests set it in other threads)
                await asyncio.sleep(0.005)
            await asyncio.sleep(self.seconds)
            texts = [self.answer(prompt, options) for _ in range(options.n or 1)]
            for piece in texts[0]:
                if emit is None:
                    break
                emit(piece)
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.open -= 1
        usage = TokenCounts(len(prompt), len(prompt) // 2, len(texts[0]))
        return Completed([Sample(text, (text,), "stop") for text in texts], usage)

    async def judge(self, history: History, choices: Sequence[str], *, unconditional: bool) -> Judged:
        self.prompts.append(plain_text(history))
        return Judged([Scored((ScoredToken(0, each, -float(len(each))),), (0.0,)) for each in choices])


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """The default backend of this test."""
    backend = Scripted()
    set_default_backend(backend)
    yield backend
    set_default_backend(None)


@pytest.fixture(scope="session")
def endpoint(server_url: str) -> Iterator[RuntimeEndpoint]:
    """The shared server with SmolLM2, as a backend."""
    backend = RuntimeEndpoint(server_url)
    yield backend
    backend.close()


@pytest.fixture
def default_endpoint(endpoint: RuntimeEndpoint) -> Iterator[RuntimeEndpoint]:
    """The same as the default backend of this test."""
    set_default_backend(endpoint)
    yield endpoint
    set_default_backend(None)


class FakeApi:
    """An HTTP server that answers as `answer(path, body)` says: a dict (JSON), a list (events), or (status, dict).

    calls: (path, headers, body) of every request. open and left: requests in the works, and those whose client left.
    """

    def __init__(self) -> None:
        self.answer: Callable[[str, dict[str, Any]], Any] = lambda path, body: {}
        self.calls: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.seconds = 0.0
        self.open = self.left = 0
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*runner.addresses[0])
        return runner

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.calls.append((request.path, dict(request.headers), body))
        self.open += 1
        try:
            await asyncio.sleep(self.seconds)
            answer = self.answer(request.path, body)
            if isinstance(answer, list):
                return await self._stream(request, answer)
            status, answer = answer if isinstance(answer, tuple) else (200, answer)
            return web.json_response(answer, status=status)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.open -= 1

    async def _stream(self, request: web.Request, events: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
        return response


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    runner = loop_thread().call(fake.start())
    yield fake
    loop_thread().call(runner.cleanup())


@pytest.fixture
def metric(endpoint: RuntimeEndpoint) -> Callable[[str], float]:
    """The shared server's metric of this name, labels included."""

    def value(name: str) -> float:
        text = loop_thread().call(endpoint._http.get("/metrics")).decode()
        return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " "))

    return value
