"""Compiling beside the event loop: shared, cached, limited; nobody waits for somebody else's slow or deadly grammar."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from sapwood.constrained.spec import Compiled, Constraint, constraint_key
from sapwood.managers.tokenizer.grammars import pool as grammar_pool
from sapwood.managers.tokenizer.grammars import service as grammar_service
from sapwood.managers.tokenizer.grammars.pool import MAX_COMPILERS, CompilerFailed
from sapwood.managers.tokenizer.grammars.service import GrammarService, Refused

FAKE = Path(__file__).parents[2] / "fakes" / "fake_compiler.py"
Compile = Callable[[str], "asyncio.Task[Compiled]"]


class Log:
    """What the compilers were given, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    @property
    def jobs(self) -> list[str]:
        return self.path.read_text().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
async def service(log: Log, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrammarService]:
    """With fake compilers; what takes longer than a second is too slow."""
    monkeypatch.setattr(grammar_pool, "COMPILE_SECONDS", 1.0)
    service = GrammarService(Path("model"), (sys.executable, str(FAKE), str(log.path)))
    yield service
    pids = service.pids
    await service.close()
    await gone(pids)


@pytest.fixture
def compile_(service: GrammarService) -> Compile:
    return lambda body: asyncio.create_task(service.compile(Constraint("regex", body)))


def compiled_by(compiled: Compiled) -> int:
    return int(compiled.payload)


async def gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline, "a compiler is left over"
        await asyncio.sleep(0.02)


async def test_equal_constraints_share_one_compilation(service: GrammarService, compile_: Compile, log: Log) -> None:
    at_once = await asyncio.gather(*(compile_("ok") for _ in range(20)))
    assert all(each is at_once[0] for each in at_once)
    assert await compile_("ok") is at_once[0]
    assert await service.compile(Constraint("regex", "ok", strict=False)) is not at_once[0], "an option is part of it"
    assert log.jobs == ["ok", "ok"]


async def test_a_refusal_is_kept_and_says_the_same_again(compile_: Compile, log: Log) -> None:
    for _ in range(3):
        with pytest.raises(Refused, match=r"^No way\.$"):
            await compile_("refuse way")
    assert log.jobs == ["refuse way"]


async def test_a_fault_of_ours_is_no_refusal_and_is_not_kept(compile_: Compile, log: Log) -> None:
    for _ in range(2):
        with pytest.raises(CompilerFailed, match="KeyError"):
            await compile_("fail")
    assert log.jobs == ["fail", "fail"]


@pytest.mark.alone
async def test_what_takes_too_long_is_killed_and_refused_for_a_while(
    service: GrammarService, compile_: Compile, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compile_("ok")
    began, before = time.monotonic(), service.pids
    with pytest.raises(Refused, match="takes more than 5 seconds to compile"):
        await compile_("sleep 30")
    assert 0.9 < time.monotonic() - began < 5
    await gone(before)
    began = time.monotonic()
    with pytest.raises(Refused, match="takes more than"):
        await compile_("sleep 30")
    assert time.monotonic() - began < 0.1
    assert log.jobs.count("sleep 30") == 1


async def test_what_took_too_long_is_tried_again_some_day(
    compile_: Compile, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_service, "SLOW_SECONDS", 0.2)
    for _ in range(2):
        with pytest.raises(Refused, match="takes more than"):
            await compile_("sleep 30")
        await asyncio.sleep(0.25)
    assert log.jobs.count("sleep 30") == 2, "it may have been the machine's fault"


async def test_a_slow_constraint_holds_up_no_other(service: GrammarService, compile_: Compile) -> None:
    await service.warm()
    assert len(service.pids) == 2
    slow = compile_("sleep 0.8")
    await asyncio.sleep(0.05)
    await asyncio.gather(*(compile_(f"ok {i}") for i in range(10)))
    assert not slow.done()
    await slow


async def test_more_compilers_start_up_to_a_bound(
    service: GrammarService, compile_: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "QUICK_SECONDS", 9.0)
    slow = [compile_(f"sleep 0.{i}") for i in (44, 45, 46, 47)]
    done = await asyncio.gather(*slow)
    assert 2 <= len({compiled.payload for compiled in done}) <= MAX_COMPILERS
    assert len(service.pids) == MAX_COMPILERS


@pytest.mark.alone
async def test_a_quick_constraint_does_not_wait_for_a_flood_of_slow_ones(
    service: GrammarService, compile_: Compile, log: Log
) -> None:
    flood = [compile_(f"sleep 0.70{i:02}") for i in range(12)]
    await asyncio.sleep(0.3)
    assert len(log.jobs) <= MAX_COMPILERS, "among equals nobody makes way so soon"
    began = time.monotonic()
    await compile_("ok")
    assert time.monotonic() - began < 1.6, "else it waits for four times 0.7 seconds"
    assert sum(task.done() for task in flood) <= 6
    for task in flood[:8]:
        assert isinstance(await task, Compiled)
    assert all(log.jobs.count(job) <= 2 for job in log.jobs), "nobody makes way twice"


async def test_slow_ones_alone_do_not_make_way(
    service: GrammarService, compile_: Compile, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "QUICK_SECONDS", 0.05)
    await asyncio.gather(*(compile_(f"sleep 0.3{i}") for i in range(MAX_COMPILERS)))
    assert len(log.jobs) == MAX_COMPILERS


async def test_closing_while_compilers_start_waits_for_their_end(
    service: GrammarService,
) -> None:
    """What is killed and not waited for makes asyncio complain on stderr as soon as the loop is closed."""
    before = psutil.Process().children()
    warming = asyncio.create_task(service.warm())
    while not (children := [each for each in psutil.Process().children() if each not in before]):  # noqa: ASYNC110 (no event)
        await asyncio.sleep(0.001)
    warming.cancel()
    await asyncio.sleep(0)
    await service.close()
    await asyncio.gather(warming, return_exceptions=True)
    assert children
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_compiler_that_dies_once_is_replaced_and_the_constraint_tried_again(compile_: Compile) -> None:
    first = compiled_by(await compile_("ok"))
    assert compiled_by(await compile_("crash-once")) != first


async def test_a_compiler_that_is_killed_from_outside_hurts_nobody(service: GrammarService, compile_: Compile) -> None:
    await service.warm()
    task = compile_("sleep 0.3")
    await asyncio.sleep(0.1)
    for pid in service.pids:
        os.kill(pid, signal.SIGKILL)
    assert isinstance(await task, Compiled)
    assert isinstance(await compile_("ok"), Compiled)


async def test_a_constraint_that_kills_its_compiler_is_refused(compile_: Compile, log: Log) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="crashed the grammar compiler"):
            await compile_("crash")
    assert log.jobs.count("crash") == grammar_service.ATTEMPTS
    assert isinstance(await compile_("ok"), Compiled)


async def test_what_is_no_answer_counts_as_a_crash(compile_: Compile) -> None:
    with pytest.raises(Refused, match="crashed"):
        await compile_("babble")
    assert isinstance(await compile_("ok"), Compiled)


async def test_one_waiter_may_leave_and_the_last_takes_what_has_not_begun_along(
    service: GrammarService, compile_: Compile, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_COMPILERS", 1)
    await service.warm()
    slow = compile_("sleep 0.3")
    one, other, alone = compile_("ok"), compile_("ok"), compile_("ok alone")
    await asyncio.sleep(0.05)
    one.cancel()
    alone.cancel()
    assert isinstance(await other, Compiled)
    await slow
    for left in (one, alone):
        with pytest.raises(asyncio.CancelledError):
            await left
    await compile_("ok")
    assert log.jobs == ["sleep 0.3", "ok"]


async def test_who_asks_right_after_the_last_one_left_gets_an_answer(
    service: GrammarService, compile_: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_COMPILERS", 1)
    await service.warm()
    slow, waiting = compile_("sleep 0.2"), compile_("ok")
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.sleep(0)
    assert isinstance(await compile_("ok"), Compiled)
    await slow


async def test_a_compiler_that_cannot_start_fails_the_request_and_the_next_tries_again(log: Log) -> None:
    service = GrammarService(Path("model"), (sys.executable, str(FAKE), str(log.path), "never starts"))
    for _ in range(2):
        with pytest.raises(CompilerFailed, match="did not start"):
            await service.compile(Constraint("regex", "ok"))
    missing = GrammarService(Path("model"), ("/nowhere/at/all",))
    with pytest.raises(CompilerFailed, match="cannot be started"):
        await missing.compile(Constraint("regex", "ok"))
    await asyncio.gather(service.close(), missing.close())


async def test_the_cache_is_bounded_in_number_and_in_bytes(
    compile_: Compile, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_service, "CACHE_ENTRIES", 3)
    for body in ("a", "b", "c", "a", "d", "a", "b"):
        await compile_(body)
    assert "".join(log.jobs) == "abcdb", "a was used again before d came, so b was the oldest"
    monkeypatch.setattr(grammar_service, "CACHE_BYTES", 10_000)
    for body in ("x 6000", "y 6000", "x 6000"):
        await compile_(body)
    assert log.jobs[-3:] == ["x 6000", "y 6000", "x 6000"]


@pytest.mark.alone
async def test_the_loop_is_never_held_up(service: GrammarService, compile_: Compile) -> None:
    await service.warm()
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await asyncio.gather(compile_("sleep 0.8"), *(compile_(f"ok {i + 20_000}") for i in range(100)))
    running = False
    await watching
    assert longest < 0.4, "but one of the constraints took twice as long"


# --- the real compiler ------------------------------------------------------------------------------------------------


@pytest.fixture
async def real(tiny_model: Path) -> AsyncIterator[GrammarService]:
    service = GrammarService(tiny_model)
    yield service
    pids = service.pids
    await service.close()
    await gone(pids)


async def test_the_real_compiler_compiles_refuses_and_gives_way(real: GrammarService) -> None:
    compiled = await real.compile(Constraint("json_schema", '{"type": "integer", "minimum": 3}'))
    assert "minimum" in compiled.enforced
    assert compiled.key == constraint_key(Constraint("json_schema", '{"type": "integer", "minimum": 3}'))
    for _ in range(2):
        with pytest.raises(Refused, match="pattern"):
            await real.compile(Constraint("json_schema", '{"type": "string", "pattern": "("}'))
    assert [psutil.Process(pid).nice() for pid in real.pids] == [grammar_pool.NICENESS]


async def test_the_real_compiler_is_killed_when_it_takes_too_long(
    real: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.compile(Constraint("json_object"))
    monkeypatch.setattr(grammar_pool, "COMPILE_SECONDS", 0.0)
    with pytest.raises(Refused, match="takes more than"):
        await real.compile(Constraint("json_schema", '{"minimum": 5}'))
    monkeypatch.undo()
    assert isinstance(await real.compile(Constraint("json_schema", '{"minimum": 6}')), Compiled)


async def test_xgrammar_is_imported_when_it_is_first_named_and_not_on_the_constraints_time(
    real: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.compile(Constraint("regex", "a"))
    monkeypatch.setattr(grammar_pool, "COMPILE_SECONDS", 1.5)
    assert (await real.compile(Constraint("regex", "ab", engine="xgrammar"))).engine == "xgrammar"
    assert (await real.compile(Constraint("regex", "abc", engine="xgrammar"))).engine == "xgrammar"
    assert len(real.pids) == 1


async def test_the_real_compiler_says_why_it_cannot_start(tmp_path: Path) -> None:
    service = GrammarService(tmp_path / "nowhere")
    with pytest.raises(CompilerFailed, match="nowhere"):
        await service.compile(Constraint("json_object"))
    await service.close()


async def test_the_real_compiler_may_not_take_all_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_service, "MEMORY_BYTES", 2**22)
    service = GrammarService(tiny_model)
    names = [f"{i:05}{'x' * 50}" for i in range(10_000)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    with pytest.raises(Refused, match="memory"):
        await service.compile(Constraint("json_schema", json.dumps(schema)))
    assert isinstance(await service.compile(Constraint("json_object")), Compiled)
    await service.close()


async def test_the_real_compiler_dies_with_the_process_that_started_it(tiny_model: Path) -> None:
    code = f"""
import asyncio, pathlib
from sapwood.managers.tokenizer.grammars.service import GrammarService
async def main():
    service = GrammarService(pathlib.Path({str(tiny_model)!r}))
    await service.warm()
    print(*service.pids, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # as deaf as native code is
    parent.kill()
    await parent.wait()
    await gone(pids)
