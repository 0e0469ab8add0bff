"""A backend from a script for what needs no model, and the shared server for what does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from sapwood.lang.backends.base import Backend, Completed, Emit, Judged, Sample, Usage
from sapwood.lang.backends.endpoint import RuntimeEndpoint
from sapwood.lang.choices import Scored, ScoredToken
from sapwood.lang.defaults import set_default_backend
from sapwood.lang.history import History, plain_text
from sapwood.lang.ir import Gen, GenOptions, Role, Select


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
            for piece in texts[0] if emit else "":
                emit(piece)
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.open -= 1
        usage = Usage(len(prompt), len(prompt) // 2, len(texts[0]))
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
