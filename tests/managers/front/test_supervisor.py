"""The life of the processes: start, death, the end of all, whoever dies first. Scheduler and worker are fakes."""

# ruff: noqa: ASYNC110, ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from sapwood.managers.front.front import Front
from sapwood.managers.front.generation import collect
from sapwood.managers.front.supervisor import CHILDREN
from sapwood.managers.wire import sockets as wire
from sapwood.managers.wire.errors import ConfigError, EngineDead, RequestAborted
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.requests import Submit
from sapwood.managers.wire.sockets import Link
from sapwood.runtime.errors import ModelError

Make = Callable[..., Submit]


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    """The links of the fronts that are started from now on."""
    made: list[Link] = []
    create = Link.create

    def recorded(ranks: int) -> Link:
        made.append(create(ranks))
        return made[-1]

    monkeypatch.setattr(Link, "create", staticmethod(recorded))
    return made


def config(model: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(model), log_level="error", **options)


async def all_gone(pids: dict[str, int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(_runs, pids.values())) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not any(map(_runs, pids.values()))


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.alone
async def test_a_stop_leaves_nothing(fakes: Any, tiny_model: Path, links: list[Link]) -> None:
    front = Front(config(tiny_model))
    await front.start()
    pids = front.pids
    assert sorted(pids) == sorted(CHILDREN)
    assert all(map(_runs, pids.values()))
    directory = Path(links[0].directory or "")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    began = time.monotonic()
    await front.stop()
    assert time.monotonic() - began < 1.5
    assert await all_gone(pids, 0)
    assert not directory.exists()


@pytest.mark.parametrize("role", CHILDREN)
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
async def test_a_dead_child_is_noticed_within_a_second(
    fakes: Any, tiny_model: Path, request_for: Make, role: str, sign: signal.Signals
) -> None:
    fakes.setenv("FAKE_SCHEDULER_PAUSE", "0.1")
    front = Front(config(tiny_model))
    await front.start()
    try:
        stream = front.stream(request_for("ab", max_tokens=60))
        await anext(stream)
        os.kill(front.pids[role], sign)
        sentence = await asyncio.wait_for(front.wait_dead(), 1.0)
        assert role in sentence
        assert not front.alive
        with pytest.raises(EngineDead, match=role):
            await collect(stream)
        with pytest.raises(EngineDead, match=role):
            front.stream(request_for("a"))
        with pytest.raises(EngineDead, match=role):
            await front.stats()
    finally:
        pids = front.pids
        await front.stop()
    assert await all_gone(pids, 0)


@pytest.mark.alone
async def test_a_child_that_listens_to_nobody_is_killed_in_time(fakes: Any, tiny_model: Path) -> None:
    fakes.setenv("FAKE_WORKER", "is deaf")
    front = Front(config(tiny_model))
    await front.start()
    pids = front.pids
    began = time.monotonic()
    await front.stop()
    assert time.monotonic() - began < 5
    assert await all_gone(pids, 0)


async def test_an_interrupt_is_for_the_parent_alone(fakes: Any, tiny_model: Path, request_for: Make) -> None:
    front = Front(config(tiny_model))
    await front.start()
    try:
        for pid in front.pids.values():
            assert os.getpgid(pid) != os.getpgid(0)
            os.kill(pid, signal.SIGINT)
        await asyncio.sleep(0.3)
        async with front.stream(request_for("ab", max_tokens=2)) as stream:
            assert (await collect(stream))[0].text == "ab"
    finally:
        await front.stop()


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        ("refuses", ModelError, "the weights are made of wood"),
        ("crashes", ModelError, "KeyError"),
        ("vanishes", EngineDead, "worker process .* exit code 3"),
    ],
)
async def test_a_failed_start_says_why_and_leaves_nothing(
    fakes: Any, tiny_model: Path, links: list[Link], behaviour: str, kind: type[Exception], words: str
) -> None:
    fakes.setenv("FAKE_WORKER", behaviour)
    front = Front(config(tiny_model))
    with pytest.raises(kind, match=words):
        await front.start()
    assert await all_gone(front.pids, 0)
    assert not Path(links[0].directory or "").exists()
    assert not front.alive


@pytest.mark.parametrize("model", ["no/such.gguf", "smollm3"])
async def test_an_unknown_model_is_refused_by_name(fakes: Any, model: str) -> None:
    front = Front(EngineConfig(model=model))
    with pytest.raises(ModelError, match=model):
        await front.start()
    assert await all_gone(front.pids, 0)


async def test_a_broken_tokenizer_is_named(fakes: Any, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    front = Front(config(tmp_path))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        await front.start()
    assert await all_gone(front.pids, 0)


async def test_too_large_a_context_is_refused_with_both_numbers(fakes: Any, tiny_model: Path) -> None:
    front = Front(config(tiny_model, max_context=65))
    with pytest.raises(ConfigError, match=r"65.*64"):
        await front.start()
    assert await all_gone(front.pids, 0)


async def test_a_start_that_is_cancelled_leaves_nothing(fakes: Any, tiny_model: Path, links: list[Link]) -> None:
    front = Front(config(tiny_model))
    start = asyncio.create_task(front.start())
    await asyncio.sleep(0.1)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert front.pids
    assert await all_gone(front.pids, 0)
    assert not Path(links[0].directory or "").exists()


PARENT = """
import asyncio, sys
sys.path[:0] = [{fakes!r}]
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.front.front import Front
from sapwood.managers.front.supervisor import Supervisor
Supervisor._command = staticmethod(lambda role: [sys.executable, *(
    [{fakes!r} + f"/fake_{{role}}.py"] if role != "tokenizer" else ["-m", "sapwood.managers.tokenizer"])])
async def main():
    front = Front(EngineConfig(model={model!r}, log_level="error"))
    await front.start()
    print(*front.pids.values(), front._link.directory, flush=True)
    await {then}
asyncio.run(main())
"""


@contextlib.contextmanager
def parent(model: Path, then: str):
    code = PARENT.format(fakes=str(Path(__file__).parents[1] / "fakes"), model=str(model), then=then)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        *pids, directory = process.stdout.readline().split()
        yield process, {pid: int(pid) for pid in pids}, Path(directory)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_no_child_outlives_its_parent(tiny_model: Path, sign: signal.Signals) -> None:
    with parent(tiny_model, "asyncio.sleep(100)") as (process, pids, directory):
        assert directory.exists()
        os.kill(process.pid, sign)
        assert await all_gone(pids, 2)
        deadline = time.monotonic() + 2
        while directory.exists():  # the last to go removes it
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_children_end_with_a_parent_that_forgot_them(tiny_model: Path) -> None:
    with parent(tiny_model, "asyncio.sleep(0)") as (process, pids, directory):
        assert process.wait(5) == 0
        assert await all_gone(pids, 0)
        assert not directory.exists()


async def test_a_fork_of_the_parent_neither_ends_nor_keeps_the_children(tiny_model: Path) -> None:
    """The first fork exits like any Python program. The second one holds copies of the pipes."""
    with parent(tiny_model, "asyncio.sleep(100 if __import__('os').fork() else 0)") as (process, pids, directory):
        await asyncio.sleep(0.7)
        assert all(map(_runs, pids.values()))
        assert directory.exists()
        process.kill()
        assert await all_gone(pids, 3)
    with parent(tiny_model, "asyncio.sleep(100 if __import__('os').fork() else 4)") as (process, pids, directory):
        await asyncio.sleep(0.2)
        process.kill()
        assert await all_gone(pids, 3)


class Bomb:
    """A pickle that makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


async def test_strangers_and_garbage_are_dropped(
    fakes: Any, tiny_model: Path, tmp_path: Path, links: list[Link], request_for: Make
) -> None:
    front = Front(config(tiny_model))
    await front.start()
    link, bomb = links[0], tmp_path / "bomb"
    valid = b"\x91\xa8Shutdown"
    frames = [
        [b""],
        [os.urandom(100)],
        [pickle.dumps(Bomb(bomb))],
        [b"0" * 16, pickle.dumps(Bomb(bomb))],
        [b"0" * 16, valid],
        [valid],
        [link.key, pickle.dumps(Bomb(bomb))],
        [link.key, os.urandom(1000)],
        [link.key],
        [link.key, b"\x91" * 100_000],
        [link.key, b"\x91\xa7NoSuch!"],
        [link.key, valid, b"more"],
    ]
    try:
        context = zmq.Context()
        for address in link.addresses.values():
            socket = context.socket(zmq.PUSH)
            socket.connect(address)
            for frame in frames:
                socket.send_multipart(frame)
            socket.close(linger=500)
        context.term()
        async with front.stream(request_for("ab", max_tokens=4)) as stream:
            assert (await collect(stream))[0].text == "abab"
        assert front.dropped_frames == len(frames)
        assert front.alive
        assert not bomb.exists()
    finally:
        await front.stop()


async def test_only_the_owner_can_reach_the_sockets(fakes: Any, tiny_model: Path, links: list[Link]) -> None:
    front = Front(config(tiny_model))
    before = {each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN}
    await front.start()
    try:
        directory = Path(links[0].directory or "")
        assert all(address.startswith(f"ipc://{directory}/") for address in links[0].addresses.values())
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in directory.iterdir())
        mine = {each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN}
        assert mine == before
        for pid in front.pids.values():
            assert psutil.Process(pid).net_connections() == []
            assert wire.ENVIRONMENT not in " ".join(psutil.Process(pid).cmdline())
    finally:
        await front.stop()


async def test_without_ipc_everything_is_on_the_loopback_address(
    fakes: Any, tiny_model: Path, links: list[Link], request_for: Make
) -> None:
    fakes.setattr(zmq, "has", lambda feature: False)
    front = Front(config(tiny_model))
    await front.start()
    try:
        assert all(address.startswith("tcp://127.0.0.1:") for address in links[0].addresses.values())
        async with front.stream(request_for("ab", max_tokens=4)) as stream:
            assert (await collect(stream))[0].text == "abab"
        for pid in front.pids.values():
            listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
            assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
    finally:
        await front.stop()


async def test_open_requests_end_with_the_engine(fakes: Any, tiny_model: Path, request_for: Make) -> None:
    fakes.setenv("FAKE_SCHEDULER_PAUSE", "0.1")
    front = Front(config(tiny_model))
    await front.start()
    streams = [front.stream(request_for("ab", max_tokens=60)) for _ in range(3)]
    await anext(streams[0])
    await front.stop()
    for stream in streams:
        with pytest.raises(RequestAborted):
            await collect(stream)
