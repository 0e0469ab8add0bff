"""An `Engine` as a backend, as it is: streaming, cancelling, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sapwood as sgl
from sapwood import Engine, ProgramError, ProgramState
from sapwood.lang.defaults import as_backend


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(smollm2_path, max_context=512, kv_tokens=2048, threads=1) as engine:
        yield engine


def within(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


@sgl.function
def story(s: ProgramState, length: int) -> None:
    s += sgl.user("Tell me a story.")
    s += sgl.assistant_begin()
    forks = s.fork(2)
    forks += lambda i: sgl.gen("x", max_tokens=length, temperature=0.8, seed=i, n=1 + i, ignore_eos=True)
    forks.join()


def test_it_streams_and_says_the_same_as_without(engine: Engine) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("Name three trees.") + sgl.assistant(sgl.gen("x", max_tokens=16, temperature=0, stop="zzz"))

    whole = program.run(backend=engine)
    streamed = program.run(backend=engine, stream=True)
    pieces = list(streamed.text_iter("x"))
    assert len(pieces) > 1
    assert "".join(pieces) == whole["x"]
    assert streamed.text() == whole.text() == "".join(program.run(backend=engine, stream=True).text_iter())


def test_samples_and_branches(engine: Engine) -> None:
    state = story.run(6, backend=engine)
    first, (second, third) = state["x"]
    assert len({first, second, third}) == 3
    assert [meta["completion_tokens"] for meta in state.meta("x")] == [6, 12]


async def test_cancelling_leaves_the_engine_idle(engine: Engine) -> None:
    task = asyncio.create_task(story.arun(400, backend=engine))
    await asyncio.to_thread(within, 10, lambda: engine.stats().running >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(within, 10, lambda: engine.stats().running == 0)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.private, stats.pinned) == (0, 0, 0, 0)


def test_what_the_engine_refuses_names_the_line(engine: Engine) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x", temperature=-1.0)

    with pytest.raises(ProgramError, match=r"gen\('x'\) at line \d+ of .* InvalidRequest: temperature must be"):
        program.run(backend=engine)


def test_an_engine_that_nobody_holds_is_let_go(engine: Engine) -> None:
    """The backends that were made of an engine do not keep it alive."""
    backend = weakref.ref(as_backend(engine))
    gc.collect()
    assert backend() is None
