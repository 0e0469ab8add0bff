"""How programs run: errors and cancellation, event loops and threads, batches, streams; on a backend from a script."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sapwood as sgl
from sapwood import ProgramError, ProgramMisuse, ProgramState
from sapwood.lang.errors import UnknownVariable

# --- errors --------------------------------------------------------------------------------------------------------


def failing_on(word: str) -> Any:
    def answer(prompt: str, options: Any) -> str:
        if word in prompt:
            raise ValueError("the backend said no")
        return "fine"

    return answer


def test_a_failed_step_raises_where_its_value_is_used(scripted: Any) -> None:
    scripted.answer = failing_on("bad")
    lines = []

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "bad"
        s += sgl.gen("x")
        s += "more" + sgl.gen("y")  # fails because of x
        for name in ("x", "y"):
            with pytest.raises(ProgramError) as caught:
                s[name]
            lines.append(caught.value)
        raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="own"):
        program()
    for error in lines:
        assert isinstance(error.__cause__, ValueError)
        assert (error.step, error.place.function) == ("gen('x')", "program")
        assert re.search(
            r"gen\('x'\) at line \d+ of test_running.py \(in program\) failed: ValueError: the ba", str(error)
        )
    assert lines[0].place.line == lines[1].place.line
    assert 's += sgl.gen("x")' in Path(__file__).read_text().splitlines()[lines[0].place.line - 1]


def test_a_failed_step_that_nobody_used_raises_out_of_run(scripted: Any) -> None:
    scripted.answer = failing_on("bad")

    @sgl.function
    def program(s: ProgramState, text: str, catch: bool = False) -> None:
        forks = s.fork(2)
        forks[1] += text + sgl.gen("x")
        if catch:
            with pytest.raises(ProgramError):
                forks.join()

    with pytest.raises(ProgramError, match="the backend said no"):
        program("bad")
    program("bad", catch=True)
    program("good")


def test_a_failed_branch_reaches_the_join(scripted: Any) -> None:
    scripted.answer = failing_on("2")

    @sgl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(4)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join()
        raise AssertionError("not reached")

    with pytest.raises(ProgramError, match="the backend said no"):
        program()


def test_an_error_of_the_program_aborts_what_is_open(scripted: Any) -> None:
    scripted.gate.clear()

    @sgl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(3)
        forks += "x" + sgl.gen("x")
        while scripted.open < 3:
            time.sleep(0.005)
        raise LookupError("stop")

    with pytest.raises(LookupError):
        program()
    wait_until(lambda: scripted.aborted == 3 and scripted.open == 0)


def test_cancelling_ends_a_program_in_a_thread(scripted: Any) -> None:
    scripted.gate.clear()
    ended = threading.Event()

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        for use in (lambda: s["x"], lambda: s.__iadd__("more"), lambda: s.fork(2)):
            with pytest.raises(sgl.ProgramCancelled):
                use()
        ended.set()

    state = program.run(stream=True)
    wait_until(lambda: scripted.open == 1)
    state.cancel()
    assert ended.wait(5)
    wait_until(lambda: scripted.aborted == 1)
    with pytest.raises(sgl.ProgramCancelled):
        state["x"]
    with pytest.raises(sgl.ProgramCancelled):
        list(state.text_iter())


# --- asynchronous programs -----------------------------------------------------------------------------------------


@sgl.function
async def asynchronous(s: ProgramState, text: str) -> str:
    s += text + sgl.gen("a")
    forks = s.fork(3)
    forks += "!" + sgl.gen("b")
    await forks.ajoin()
    return await s.aget("a") + "".join(await s.aget("b")) + await s.atext()


def test_async_programs_run_with_and_without_a_loop(scripted: Any) -> None:
    expected = "<4><8><8><8>text<4>"
    assert asynchronous("text").ret_value == expected

    async def main() -> None:
        states = await asyncio.gather(*(asynchronous.arun("text") for _ in range(5)))
        assert [state.ret_value for state in states] == [expected] * 5
        assert asynchronous.run("text").ret_value == expected  # as in a notebook

    asyncio.run(main())


async def test_plain_programs_run_in_threads_of_a_loop(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> str:
        s += "x" + sgl.gen("x")
        return s["x"]

    states = await asyncio.gather(*(program.arun() for _ in range(20)))
    assert [state.ret_value for state in states] == ["<1>"] * 20


async def test_blocking_in_an_async_program_is_refused(scripted: Any) -> None:
    scripted.gate.clear()

    @sgl.function
    async def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        with pytest.raises(ProgramMisuse, match=r"await s\.aget"):
            s["x"]
        scripted.gate.set()
        await s.aget("x")
        assert s["x"] == "<1>"  # it is there

    await program.arun()


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_cancelling_arun_aborts_the_requests(scripted: Any, kind: str) -> None:
    scripted.gate.clear()

    @sgl.function
    def plain(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        s["x"]

    @sgl.function
    async def coroutine(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        await s.aget("x")

    task = asyncio.create_task((plain if kind == "def" else coroutine).arun())
    await asyncio.to_thread(wait_until, lambda: scripted.open == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: scripted.aborted == 1)


# --- programs within programs, threads within programs -------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_programs_may_run_programs_and_read_in_threads_of_their_own(scripted: Any, stream: bool) -> None:
    @sgl.function
    def inner(s: ProgramState, outer: ProgramState) -> str:
        s += outer.text() + sgl.gen("y")
        with pytest.raises(UnknownVariable):
            outer["z"]
        return s["y"] + outer["x"]

    @sgl.function
    def program(s: ProgramState) -> list[str]:
        s += "ab" + sgl.gen("x")
        forks = s.fork(3)
        forks += "c" + sgl.gen("z")
        with ThreadPoolExecutor(3) as threads:
            read = list(threads.map(lambda fork: fork["z"] + fork.text(), forks))
        return [inner.run(s).ret_value, *read]

    state = program.run(stream=stream)
    assert state.text() == "ab<2>"
    assert state.ret_value == ["<5><2>", *["<6>ab<2>c<6>"] * 3]


@pytest.mark.alone
def test_many_small_programs_cost_little(scripted: Any) -> None:
    """Well under the time that a model takes for a token."""

    @sgl.function
    def program(s: ProgramState, number: int) -> None:
        s += f"{number}" + sgl.gen("a")
        s.fork(2).join()
        s += sgl.gen("b")

    started = time.perf_counter()
    assert len(program.run_batch([(i,) for i in range(300)])) == 300
    assert (time.perf_counter() - started) / 600 < 0.02


# --- batches and streams -------------------------------------------------------------------------------------------


@sgl.function
def ask(s: ProgramState, question: str, mark: str = "?") -> None:
    s += question + mark + sgl.gen("answer")


def test_a_batch_keeps_its_order_and_its_failures_to_themselves(
    scripted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.answer = failing_on("bad")
    states = ask.run_batch([{"question": "one"}, ("bad", "!"), {"question": "two", "mark": "."}], progress_bar=True)
    assert [state.error is None for state in states] == [True, False, True]
    assert states[2].text() == "two.fine"
    for read in (lambda: states[1]["answer"], states[1].text, states[1].messages, states[1].sync):
        with pytest.raises(ProgramError, match="the backend said no"):
            read()
    assert "3/3" in capsys.readouterr().err
    assert ask.run_batch([]) == []


def test_a_batch_is_bounded_and_comes_one_by_one_on_request(scripted: Any) -> None:
    scripted.seconds = 0.02
    batch = [{"question": str(i)} for i in range(12)]
    states = list(ask.run_batch(batch, num_threads=3, generator_style=True))
    assert scripted.most_open == 3
    assert [state.text()[0:2] for state in states] == [f"{i}?"[:2] for i in range(12)]
    before = len(scripted.prompts)
    scripted.seconds = 0.2
    for state in ask.run_batch(batch, num_threads=1, generator_style=True):
        assert state["answer"]
        break
    time.sleep(0.3)
    assert len(scripted.prompts) - before <= 2, "leaving the iterator ends the rest"


def test_a_batch_is_checked_before_it_runs(scripted: Any) -> None:
    for batch, sentence in [
        ([{"question": "a"}, {"qestion": "b"}], "no parameter 'qestion'"),
        ([("a", "b", "c")], "too many positional"),
        (["text"], "a dict or a tuple"),
    ]:
        with pytest.raises(ProgramMisuse, match=sentence):
            ask.run_batch(batch)
    for batch in (None, {"question": "a"}, "abc", 5):
        with pytest.raises(ProgramMisuse, match="run_batch takes a list of items"):
            ask.run_batch(batch)  # type: ignore
    for threads in (0, "four"):
        with pytest.raises(ProgramMisuse, match="num_threads"):
            ask.run_batch([("a",)], num_threads=threads)  # type: ignore
    assert len(ask.run_batch({"question": each} for each in "ab")) == 2, "anything that gives items"  # type: ignore
    scripted.prompts.clear()
    assert scripted.prompts == []


def test_bound_arguments_stay(scripted: Any) -> None:
    bound = ask.bind(mark="!")
    assert bound.run(question="a").text() == "a!<2>"
    assert bound.run_batch([("b",)])[0].text() == "b!<2>"


def test_text_streams_as_it_comes(scripted: Any) -> None:
    scripted.answer = lambda prompt, options: "abc"

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("x") + sgl.select("y", ["dd", "eee"]))

    state = program.run(stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == "user: q\nassistant: abcdd\n"
    assert {"a", "b", "c", "dd"} <= set(pieces)
    assert list(program.run(stream=True).text_iter("x")) == ["a", "b", "c"]
    assert list(program.run().text_iter("x")) == ["abc"], "whole without streaming"
    with pytest.raises(UnknownVariable):
        list(program.run(stream=True).text_iter("z"))


async def test_text_streams_in_a_loop_and_from_parallel_branches(scripted: Any) -> None:
    scripted.answer = lambda prompt, options: "abcdefgh"
    seen: list[str] = []

    @sgl.function
    async def program(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += "x" + sgl.gen("x")

        async def show(name: str, state: ProgramState) -> None:
            async for piece in state.text_async_iter("x"):
                seen.append(name + piece)

        await asyncio.gather(*(show("01"[i], f) for i, f in enumerate(forks)))
        await forks.ajoin()

    state = await program.arun(stream=True)
    assert await state.aget("x") == ["abcdefgh"] * 2, "outside, reading waits for what is yet to come"
    assert sorted(seen) == sorted(name + piece for name in "01" for piece in "abcdefgh")
    assert seen != sorted(seen), "the branches took turns"


def test_an_error_ends_a_stream(scripted: Any) -> None:
    scripted.answer = failing_on("bad")
    for _ in range(20):  # whoever is quicker, the program or its reader
        state = ask.run(question="bad", stream=True)
        with pytest.raises(ProgramError, match="the backend said no"):
            list(state.text_iter("answer"))
        for read in (lambda: state["answer"], state.text, state.sync):  # noqa: B023
            with pytest.raises(ProgramError, match="the backend said no"):
                read()
        assert isinstance(state.error, ProgramError), "a reader's seeing it does not settle it"


@pytest.mark.parametrize("name", [None, "x", "never set"])
def test_the_programs_own_error_ends_a_stream(scripted: Any, name: str | None) -> None:
    scripted.gate.clear()

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        wait_until(lambda: scripted.open == 1)
        raise LookupError("the program's own") from KeyError("its cause")

    async def read_async(state: ProgramState) -> list[str]:
        return [piece async for piece in state.text_async_iter(name)]

    for read in (lambda state: list(state.text_iter(name)), lambda state: asyncio.run(read_async(state))):
        state = program.run(stream=True)
        with pytest.raises(LookupError, match="the program's own") as caught:
            read(state)
        assert isinstance(caught.value.__cause__, KeyError)
        wait_until(lambda: scripted.open == 0)


def test_reasoning_is_separated(scripted: Any) -> None:
    scripted.answer = lambda prompt, options: "<think>hm, 4</think>\n\nfour"

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("2+2?")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x"), "qwen3"))

    state = program()
    assert (state["x"], state["x_reasoning_content"]) == ("four", "hm, 4")
    assert state.messages()[-1]["content"] == "four"


def wait_until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
