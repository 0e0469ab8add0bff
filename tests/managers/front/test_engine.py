"""`Engine`: sync and async, single and in batches, from scripts, loops and threads. Scheduler and worker are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tokenizers

from sapwood import Engine
from sapwood.managers.wire.errors import ConfigError, EngineDead, InvalidRequest, Overloaded, RequestAborted
from sapwood.runtime.errors import ModelError

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def engine(module_fakes: pytest.MonkeyPatch, tiny_model: Path) -> Iterator[Engine]:
    """One engine for all tests here: each leaves it idle."""
    with Engine(tiny_model, max_running=4, max_queue=4) as engine:
        yield engine


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def idle(engine: Engine) -> bool:
    return within(3, lambda: engine.stats().running == 0)


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# --- complete ---------------------------------------------------------------------------------------------------


def test_a_string_gives_one_generation(engine: Engine) -> None:
    answer = engine.generate("abc", max_tokens=5)
    assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("abcab", "length", 3)
    assert len(answer.token_ids) == 5
    assert len(engine.generate("abc", n=2, max_tokens=2).completions) == 2


def test_an_engine_and_what_it_gives_are_shown_in_a_line(engine: Engine, tiny_model: Path) -> None:
    assert repr(engine) == f"Engine({str(tiny_model)!r})"
    shown = repr(engine.generate("hello " * 9, max_tokens=8, ignore_eos=True, echo=True))
    assert shown.startswith("<Generation 'hello hello ")
    assert "8 generated" in shown
    assert len(shown) < 200


def test_token_ids_are_one_prompt(engine: Engine, tiny: tokenizers.Tokenizer) -> None:
    ids = tiny.encode("xyz").ids
    assert engine.generate(ids, max_tokens=3).text == "xyz"
    assert [each.text for each in engine.generate([ids, ids[:1]], max_tokens=2)] == ["xy", "xx"]


def test_a_list_is_a_batch_in_order(engine: Engine, tiny: tokenizers.Tokenizer) -> None:
    prompts = [f"{i}." for i in range(30)]
    answers = engine.generate(prompts, max_tokens=6)
    assert [answer.text for answer in answers] == [(prompt * 6)[:6] for prompt in prompts]
    [mixed] = engine.generate([["a", *tiny.encode("b").ids]], max_tokens=2)
    assert mixed.text == "ab"
    assert idle(engine)


def test_a_number_among_texts_is_refused_with_the_way_to_say_it(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"\[\[…\]\]"):
        engine.generate(["a", 5])  # type: ignore[list-item]


def test_messages_are_one_conversation_or_several(engine: Engine) -> None:
    assert engine.generate(messages=[USER], max_tokens=6).text == "user\n"
    answers = engine.generate(messages=[[USER], [{**USER, "role": "tool"}]], max_tokens=6)
    assert [answer.text for answer in answers] == ["user\n", "tool\n"]


def test_wrong_requests_are_refused_by_name(engine: Engine) -> None:
    for call in (engine.generate, engine.generate_stream, engine.astream):
        with pytest.raises(InvalidRequest) as caught:
            call("a", max_tokns=3)
        assert caught.value.field == "max_tokns"
    with pytest.raises(InvalidRequest):
        engine.generate()
    with pytest.raises(InvalidRequest):
        engine.generate("a", messages=[USER])
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("x" * 100)
    assert caught.value.field == "prompt"
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(["a", "b"], request_id="one")
    assert caught.value.field == "request_id"


def test_a_failed_item_raises_after_the_others_or_stands_in_its_place(engine: Engine) -> None:
    before = engine.stats().finished
    with pytest.raises(InvalidRequest, match="100 tokens"):
        engine.generate(["x" * 100, "a", "b"], max_tokens=30)
    assert engine.stats().finished == before + 2
    refused, answer = engine.generate(["x" * 100, "a"], max_tokens=2, return_exceptions=True)
    assert isinstance(refused, InvalidRequest)
    assert not isinstance(answer, Exception)
    assert answer.text == "aa"


def test_scores_in_order(engine: Engine, tiny: tokenizers.Tokenizer) -> None:
    scores = engine.score("ab", ["c", "de"], logprobs=0)
    assert [score.logprob for score in scores] == [-sum(tiny.encode(text).ids) for text in ("c", "de")]
    with pytest.raises(InvalidRequest) as caught:
        engine.score("ab", ["c"], max_tokens=3)
    assert caught.value.field == "max_tokens"
    with pytest.raises(InvalidRequest, match=r"must be a list; for a single one write \['c'\]"):
        engine.score("ab", "c")
    with pytest.raises(InvalidRequest, match=r"expected `list`, got `int`"):
        engine.score("ab", 5)  # type: ignore


# --- streams ----------------------------------------------------------------------------------------------------


def test_a_stream_gives_the_text_as_it_comes(engine: Engine) -> None:
    chunks = list(engine.generate_stream("abc", max_tokens=7))
    assert "".join(chunk.text for chunk in chunks) == "abcabca"
    assert len(chunks) == 7
    assert [chunk.finish is None for chunk in chunks] == [True] * 6 + [False]


def test_a_stream_that_is_left_is_aborted(engine: Engine) -> None:
    before = engine.stats()
    for _ in engine.generate_stream("ab", max_tokens=60):
        break
    assert idle(engine)
    with engine.generate_stream("ab", max_tokens=60) as stream:
        next(stream)
    assert list(stream) == []
    assert idle(engine)
    after = engine.stats()
    assert (after.aborted, after.finished) == (before.aborted + 2, before.finished)


def test_abort_by_id_from_another_thread(engine: Engine) -> None:
    stream = engine.generate_stream("ab", max_tokens=60, request_id="me")
    assert stream.request_id == "me"
    next(stream)
    threading.Timer(0.02, engine.abort, ["me"]).start()
    with pytest.raises(RequestAborted):
        list(stream)
    assert not engine.abort("me")
    assert idle(engine)


def test_an_interrupt_aborts_what_was_waited_for_and_the_engine_lives_on(engine: Engine) -> None:
    before = engine.stats().aborted
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["ab"] * 200, max_tokens=60)
    assert idle(engine)
    assert engine.stats().aborted > before
    assert engine.generate("a", max_tokens=2).text == "aa"


def test_too_much_at_once_is_refused(engine: Engine) -> None:
    streams = [engine.generate_stream("a", n=4, max_tokens=60) for _ in range(2)]
    with pytest.raises(Overloaded):
        engine.generate("a")
    for stream in streams:
        stream.close()
    assert engine.generate("a", max_tokens=1).text == "a"


def test_many_threads_share_an_engine(engine: Engine) -> None:
    answers: dict[int, str] = {}

    def ask(i: int) -> None:
        answers[i] = engine.generate(f"{i}!", max_tokens=4).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: f"{i}!" * 2 for i in range(6)}


# --- async ------------------------------------------------------------------------------------------------------


async def test_async_twins(engine: Engine) -> None:
    answer, answers, scores = await asyncio.gather(
        engine.agenerate("ab", max_tokens=3), engine.agenerate(["a", "b"], max_tokens=2), engine.ascore("a", ["b"])
    )
    assert (answer.text, [each.text for each in answers], len(scores)) == ("aba", ["aa", "bb"], 1)
    assert "".join([chunk.text async for chunk in engine.astream("ab", max_tokens=5)]) == "ababa"


def test_any_loop_will_do_and_one_that_runs_already(engine: Engine) -> None:
    async def both() -> list[str]:
        return [(await engine.agenerate("a", max_tokens=2)).text, engine.generate("b", max_tokens=2).text]

    for _ in range(2):
        assert asyncio.run(both()) == ["aa", "bb"]


async def test_cancelling_and_leaving_abort(engine: Engine) -> None:
    before = engine.stats().aborted
    task = asyncio.create_task(engine.agenerate("ab", max_tokens=60))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async for _ in engine.astream("ab", max_tokens=60):
        break
    async with engine.astream("ab", max_tokens=60) as stream:
        await anext(stream)
    gc.collect()
    assert idle(engine)
    assert engine.stats().aborted == before + 3


# --- life -------------------------------------------------------------------------------------------------------


def test_control(engine: Engine) -> None:
    assert engine.flush_cache() == 42
    assert engine.stats().total == 4096
    assert engine.info.max_context == 64


def test_wrong_options_are_refused_by_name(tiny_model: Path) -> None:
    wrong: list[dict[str, Any]] = [{"kv_tokns": 5}, {"threads": "2"}, {"threads": -1}, {"schedule": "lifo"}]
    wrong += [{"dtype": "int3"}, {"kv_memory_fraction": float("nan")}, {"chunk_tokens": 0}, {"audit": 1}]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            Engine(tiny_model, **options)
    with pytest.raises(ConfigError, match=r"Unknown option 'tp_size'; did you mean 'tp'\?"):
        Engine(tiny_model, tp_size=2)
    with pytest.raises(ConfigError, match=r"Unknown option 'zzz'\. Allowed are: attention_backend, ") as caught:
        Engine(tiny_model, zzz=2)
    assert "audit" not in str(caught.value), "test modes are nothing to offer"
    assert "poison" not in str(caught.value)


def test_a_start_that_fails_raises_its_sentence(fakes: pytest.MonkeyPatch, tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="no file or directory"):
        Engine("./nowhere.gguf")
    fakes.setenv("FAKE_WORKER", "refuses")
    with pytest.raises(ModelError, match="made of wood"):
        Engine(tiny_model, log_level="error")


def test_after_shutdown_everything_raises_engine_dead(fakes: pytest.MonkeyPatch, tiny_model: Path) -> None:
    fakes.setenv("FAKE_SCHEDULER_PAUSE", "0.1")
    engine = Engine(tiny_model)
    pids = list(engine._front.front.pids.values())
    stream = engine.generate_stream("ab", max_tokens=60)
    next(stream)
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            engine.generate("ab", max_tokens=60)
        except Exception as error:
            waiting.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    engine.shutdown()
    engine.shutdown()
    thread.join(3)
    assert [type(error) for error in waiting] == [RequestAborted]
    assert not any(map(runs, pids))
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate("a"),
        lambda: engine.generate_stream("a"),
        lambda: engine.score("a", ["b"]),
        lambda: engine.abort("x"),
        engine.stats,
        engine.flush_cache,
        lambda: next(stream),
        lambda: asyncio.run(engine.agenerate("a")),
    ]
    for call in calls:
        with pytest.raises(EngineDead):
            call()


def test_after_the_death_of_a_child_everything_raises_engine_dead(fakes: pytest.MonkeyPatch, tiny_model: Path) -> None:
    with Engine(tiny_model) as engine:
        os.kill(engine._front.front.pids["worker"], signal.SIGKILL)
        assert within(1, lambda: not engine._front.front.alive)
        for call in (lambda: engine.generate("a"), engine.stats):
            with pytest.raises(EngineDead, match="worker"):
                call()


def test_an_engine_that_is_forgotten_ends_its_processes(fakes: pytest.MonkeyPatch, tiny_model: Path) -> None:
    engine = Engine(tiny_model)
    pids = list(engine._front.front.pids.values())
    assert all(map(runs, pids))
    del engine
    gc.collect()
    assert within(3, lambda: not any(map(runs, pids)))


SCRIPT = """
import sys
sys.path.append({tests!r})
from conftest import _install_fakes
import pytest
_install_fakes(pytest.MonkeyPatch())
from sapwood import Engine
engine = Engine({model!r})
print(engine.generate("abc", max_tokens=4).text, *engine._front.front.pids.values(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "engine.shutdown()", "sys.exit(0)", "1 / 0"])
def test_a_script_needs_neither_main_guard_nor_shutdown(tiny_model: Path, tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), model=str(tiny_model), end=end))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=20, cwd=tmp_path)
    text, *pids = done.stdout.split()
    assert text == "abca", done.stderr
    assert len(pids) == 3
    assert not any(runs(int(pid)) for pid in pids)
    assert done.returncode == (1 if end == "1 / 0" else 0)
    assert ("ZeroDivisionError" in done.stderr) == (end == "1 / 0")
    assert "Error" not in done.stderr.replace("ZeroDivisionError", "")


def test_a_session_on_standard_input_works_from_a_misleading_directory(tiny_model: Path, tmp_path: Path) -> None:
    """What lies in the working directory must not be taken for modules by the children."""
    (tmp_path / "sapwood").mkdir()
    (tmp_path / "sapwood" / "__init__.py").write_text("raise SystemExit('the wrong sapwood')")
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), model=str(tiny_model), end="")
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=tmp_path)
    assert done.stdout.startswith("abca"), done.stderr
