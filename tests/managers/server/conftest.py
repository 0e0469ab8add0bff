"""A server around a front that computes nothing: it answers every request from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sapwood.managers.server.app import make_runner
from sapwood.managers.server.server_state import ServerState
from sapwood.managers.wire.answers import Alternative, CacheReport, Finish, TextChunk, TokenLogprob
from sapwood.managers.wire.errors import EngineDead, InvalidRequest, RequestAborted
from sapwood.managers.wire.lifecycle import ReasoningInfo
from sapwood.managers.wire.questions import Stats
from sapwood.managers.wire.requests import Submit
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

PROMPT_TOKENS, CACHED_TOKENS, VOCAB_SIZE, MAX_CONTEXT, CAPACITY = 7, 3, 1000, 64, 100
WORDS = ["Once", " upon", " a", " time", ",", " é", "🚲", " the", " end", "."]


def logprob_of(token_id: int, text: str, top: int) -> TokenLogprob:
    data = text.encode()
    others = [Alternative(token_id + i, f"{text}{i}", f"{text}{i}".encode(), -0.5 - i) for i in range(top)]
    return TokenLogprob(token_id, text, data, -0.5, others)


class FakeStream:
    """What `Front.stream` gives: an async iterator and context manager that notes how it was left."""

    def __init__(self, front: FakeFront, submit: Submit) -> None:
        self._front = front
        self.submit = submit
        self._script = front.script(submit)
        self.ended = False
        self.broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> FakeStream:
        self._front.open[self.submit.request_id] = self
        return self

    async def __aexit__(self, *_: object) -> None:
        del self._front.open[self.submit.request_id]
        if not self.ended:
            self._front.left_early.append(self.submit.request_id)

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> TextChunk:
        step = asyncio.ensure_future(self._step())
        try:
            await asyncio.wait((step, self.broken), return_when=asyncio.FIRST_COMPLETED)
            if self.broken.done():
                raise self.broken.result()
            return step.result()
        except BaseException as error:
            self.ended = self.ended or not isinstance(error, asyncio.CancelledError)
            raise
        finally:
            step.cancel()

    async def _step(self) -> TextChunk:
        await self._front.gate.wait()
        if self._front.step_seconds:
            await asyncio.sleep(self._front.step_seconds)
        if not self._script:
            raise StopAsyncIteration
        item = self._script.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


class FakeFront:
    """The face of `Front`, with knobs: `gate` holds everything back, `fail_after` breaks streams."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(
            model=SimpleNamespace(vocab_size=VOCAB_SIZE),
            max_context=MAX_CONTEXT,
            sampling=OPENAI_DEFAULTS,
            timings={},
            reasoning=ReasoningInfo(),
        )
        self.config = SimpleNamespace(capacity=CAPACITY)
        self.submits: list[Submit] = []
        self.open: dict[str, FakeStream] = {}
        self.left_early: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.step_seconds = 0.0
        self.refusal: Exception | None = None
        self.failure: tuple[int, Exception] | None = None
        self.words = WORDS
        self.cache: CacheReport | None = None
        self.dropped_frames = 5
        self.death: asyncio.Future[str] | None = None
        self.start_error: Exception | None = None
        self.stopped = False

    def script(self, submit: Submit) -> list[Any]:
        if submit.score is not None:
            return [self._scored(submit, i) for i in range(len(submit.score))]
        limit = submit.sampling.max_tokens
        words = self.words if limit < 0 else self.words[:limit]
        chunks: list[Any] = [
            self._chunk(submit, sample, k, words) for k in range(max(1, len(words))) for sample in range(submit.n)
        ]
        if self.failure is not None:
            after, error = self.failure
            chunks[after:] = [error]
        return chunks

    def _chunk(self, submit: Submit, sample: int, k: int, words: list[str]) -> TextChunk:
        text, ids = (words[k], [100 + k]) if words else ("", [])
        top = submit.sampling.logprobs
        scored = submit.wanted.top if submit.wanted is not None else None
        first = (
            [TokenLogprob(1, "<p>", b"<p>", None, []), logprob_of(2, "prompt", scored)] if scored is not None else None
        )
        finish = None
        if k == max(0, len(words) - 1):
            finish = Finish("length" if len(words) < len(self.words) else "stop")
        return TextChunk(
            submit.request_id,
            sample,
            ("<p>prompt" if submit.echo and k == 0 else "") + text,
            ids,
            PROMPT_TOKENS,
            CACHED_TOKENS,
            k + len(ids),
            [logprob_of(ids[0], text, top)] if top is not None and ids else [],
            first if k == 0 else None,
            finish,
            cache=self.cache if k == 0 and sample == 0 else None,
        )

    def _scored(self, submit: Submit, i: int) -> TextChunk:
        assert submit.wanted is not None
        tokens = [logprob_of(10 + i, "one", submit.wanted.top), logprob_of(20 + i, "two", 0)]
        return TextChunk(submit.request_id, i, "", [], PROMPT_TOKENS, CACHED_TOKENS, 0, [], tokens, Finish("length"))

    def stream(self, submit: Submit) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        if submit.request_id in self.open:
            raise InvalidRequest("request_id is taken", "request_id")
        self.submits.append(submit)
        return FakeStream(self, submit)

    def abort(self, request_id: str) -> bool:
        stream = self.open.get(request_id)
        if stream is not None:
            stream.broken.set_result(RequestAborted("The request was aborted."))
        return stream is not None

    async def stats(self) -> Stats:
        counts = {name: i + 1 for i, name in enumerate(Stats.__struct_fields__)}
        return Stats(**counts)

    async def flush_cache(self) -> int:
        return 42

    @property
    def alive(self) -> bool:
        return self.death is None or not self.death.done()

    async def start(self) -> None:
        self.death = asyncio.get_running_loop().create_future()
        await self.gate.wait()
        if self.start_error is not None:
            raise self.start_error

    async def wait_dead(self) -> str:
        assert self.death is not None
        return await self.death

    async def stop(self) -> None:
        self.stopped = True
        self._break(RequestAborted("The engine was shut down."))

    def die(self, sentence: str) -> None:
        assert self.death is not None
        self.death.set_result(sentence)
        self._break(EngineDead(sentence))

    def _break(self, error: Exception) -> None:
        for stream in self.open.values():
            if not stream.broken.done():
                stream.broken.set_result(error)


class Client:
    """Sends to the server under test; `answer` is (status, decoded JSON)."""

    def __init__(self, session: aiohttp.ClientSession, url: str, front: FakeFront, state: ServerState) -> None:
        self.session, self.url, self.front, self.state = session, url, front, state

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        options = options or {"json": body}
        async with self.session.post(self.url + path, **options) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a streamed answer."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            text = (await response.read()).decode()
        assert text.endswith("\n\n")
        return [event.removeprefix("data: ") for event in text.removesuffix("\n\n").split("\n\n")]


@pytest.fixture
def front() -> FakeFront:
    return FakeFront()


@pytest.fixture
def served_model() -> str:
    """What `--model` says."""
    return "fake-model"


@pytest.fixture
async def client(front: FakeFront, served_model: str) -> AsyncIterator[Client]:
    state = ServerState(front, served_model, head_seconds=0.5, stall_seconds=0.5)  # pyright: ignore[reportArgumentType]
    state.set_phase("ready", "")
    runner = make_runner(state)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        yield Client(session, url, front, state)
    await runner.cleanup()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Any]:
    async def wait(condition: Callable[[], bool], seconds: float = 5.0) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
            await asyncio.sleep(0.005)

    return wait
