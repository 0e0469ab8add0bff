"""Two hundred programs at once, with forks, cancellations and a failing server: nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import sapwood as sgl
from sapwood import OpenAI, ProgramCancelled, ProgramError, ProgramState, RuntimeEndpoint
from sapwood.lang.running.loop import loop_thread

PROGRAMS = 200


@sgl.function
def branching(s: ProgramState, number: int) -> str:
    s += f"Program {number}:" + sgl.gen("start", max_tokens=4)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f" branch {i}:" + sgl.gen("x", max_tokens=4)
        if i == 1:
            inner = f.fork(2)
            inner += "!" + sgl.gen("y", max_tokens=4)
            inner.join()
    if number % 7 == 0:
        raise LookupError("the program's own error")
    forks.join()
    s += " and" + sgl.gen("end", max_tokens=4)
    return s["end"]


@sgl.function
async def branching_async(s: ProgramState, number: int) -> str:
    s += f"Program {number}:" + sgl.gen("start", max_tokens=4)
    forks = s.fork(3)
    forks += " branch:" + sgl.gen("x", max_tokens=4)
    await forks.ajoin()
    s += " and" + sgl.gen("end", max_tokens=4)
    return await s.aget("end")


async def outcomes(backend: Any, rng: random.Random) -> Counter[str]:
    """Runs the programs, some of which are cancelled, and counts how they ended."""

    async def one(number: int) -> str:
        program = branching if number % 2 else branching_async
        task = asyncio.ensure_future(program.arun(number, backend=backend))
        if number % 3 == 0:
            await asyncio.sleep(rng.uniform(0, 0.3))
            task.cancel()
        try:
            state = await task
        except asyncio.CancelledError:
            return "cancelled"
        except (ProgramError, ProgramCancelled, LookupError) as error:
            return type(error).__name__
        assert isinstance(state.ret_value, str)
        return "done"

    return Counter(await asyncio.gather(*(one(number) for number in range(PROGRAMS))))


def settle(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def own_threads() -> int:
    return sum(thread.name.startswith("sapwood-program") for thread in threading.enumerate()) - 1  # the loop's own


def open_tasks() -> int:
    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return loop_thread().call(count())


@pytest.mark.timeout(120)
async def test_nothing_hangs_and_nothing_is_left_over_a_failing_server(api: Any) -> None:
    rng = random.Random(5)

    def answer(path: str, body: dict[str, Any]) -> Any:
        lot = rng.random()
        if lot < 0.03:
            return (500, {"error": {"message": "injected"}})
        if lot < 0.06:
            return (503, {"error": {"message": "busy"}})
        if lot < 0.08:
            return {"choices": []}
        if lot < 0.09:
            raise ConnectionResetError("injected")
        return {"choices": [{"index": 0, "text": " fine", "finish_reason": "stop"}]}

    api.answer, api.seconds = answer, 0.02
    backend = OpenAI("any", base_url=api.url, chat=False)
    tasks_before = open_tasks()
    counts = await asyncio.wait_for(outcomes(backend, rng), 60)
    assert counts.total() == PROGRAMS
    assert counts["done"] > 0
    assert counts["cancelled"] > 0
    assert counts["ProgramError"] > 0
    assert counts["LookupError"] > 0
    await asyncio.to_thread(settle, lambda: api.open == 0 and own_threads() == 0)
    assert (api.open, own_threads()) == (0, 0)
    connector = backend._http._sessions[loop_thread()].connector
    assert connector is not None
    assert not connector._acquired, "every connection was given back"
    backend.close()
    await asyncio.to_thread(settle, lambda: open_tasks() <= tasks_before)
    assert open_tasks() <= tasks_before


@pytest.mark.timeout(120)
async def test_cancelled_programs_leave_nothing_on_a_real_server(
    endpoint: RuntimeEndpoint, metric: Callable[[str], float]
) -> None:
    @sgl.function
    async def long(s: ProgramState, number: int) -> None:
        s += f"Story {number}:"
        forks = s.fork(3)
        forks += sgl.gen("x", max_tokens=400, ignore_eos=True)
        await forks.ajoin()

    tasks = [asyncio.create_task(long.arun(i, backend=endpoint)) for i in range(8)]
    await asyncio.to_thread(settle, lambda: metric("sapwood_running") >= 1)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    await asyncio.to_thread(settle, lambda: metric("sapwood_http_requests_open") == 0)
    await asyncio.to_thread(settle, lambda: metric("sapwood_running") + metric("sapwood_waiting") == 0)
    left = ["sapwood_http_requests_open", "sapwood_running", "sapwood_waiting"]
    left += ['sapwood_slots{state="private"}', 'sapwood_slots{state="pinned"}']
    assert {name: metric(name) for name in left} == dict.fromkeys(left, 0.0)
