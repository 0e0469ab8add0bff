"""Requests through a front: back to their owner, refused, aborted, abandoned. Scheduler and worker are fakes."""

# ruff: noqa: ASYNC110

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import tokenizers

from sapwood.managers.front.front import Front
from sapwood.managers.front.generation import Completion, Score, collect
from sapwood.managers.wire.errors import EngineDead, InvalidRequest, Overloaded, RequestAborted, RequestFailed
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.requests import Submit

pytestmark = pytest.mark.asyncio(loop_scope="module")
Make = Callable[..., Submit]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def front(module_fakes: pytest.MonkeyPatch, tiny_model: Path) -> AsyncIterator[Front]:
    """One front for all tests here: each leaves it idle."""
    front = Front(config_for(tiny_model))
    await front.start()
    yield front
    await front.stop()


def config_for(model: Path) -> EngineConfig:
    return EngineConfig(model=str(model), max_running=4, max_queue=4, log_level="warning")


async def complete(front: Front, submit: Submit) -> list[Completion]:
    async with front.stream(submit) as stream:
        return await asyncio.wait_for(collect(stream), 10)


async def idle(front: Front) -> bool:
    """Whether the scheduler comes to hold nothing, soon."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if (await front.stats()).running == 0 and front._requests.samples == 0:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_request_comes_back_to_its_owner(front: Front, request_for: Make) -> None:
    [completion] = await complete(front, request_for("abc", max_tokens=7, logprobs=1, echo=True))
    assert completion.text == "abc" + "abcabca"
    assert completion.finish_reason == "length"
    assert (completion.prompt_tokens, completion.completion_tokens) == (3, 7)
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids) == 7
    assert await idle(front)


async def test_many_at_once_do_not_mix(front: Front, request_for: Make) -> None:
    prompts = [f"prompt {i}|" for i in range(8)]
    answers = await asyncio.gather(*(complete(front, request_for(p, max_tokens=40, temperature=0)) for p in prompts))
    assert [each[0].text for each in answers] == [(prompt * 8)[:40] for prompt in prompts]


async def test_samples_come_back_by_index(front: Front, request_for: Make) -> None:
    completions = await complete(front, request_for("ab", n=3, max_tokens=4))
    assert [(each.index, each.text) for each in completions] == [(0, "abab"), (1, "abab"), (2, "abab")]


async def test_a_stream_gives_every_chunk_with_the_callers_id(front: Front, request_for: Make) -> None:
    submit = request_for("ab", max_tokens=5, request_id="mine")
    async with front.stream(submit) as stream:
        chunks = [chunk async for chunk in stream]
    assert {chunk.request_id for chunk in chunks} == {"mine"}
    assert "".join(chunk.text for chunk in chunks) == "ababa"
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_score_comes_back_as_log_probabilities(
    front: Front, score_for: Make, tiny: tokenizers.Tokenizer
) -> None:
    scores = [Score.of(each) for each in await complete(front, score_for("ab", ["c", "de"]))]
    assert [score.logprob for score in scores] == [-sum(tiny.encode(text).ids) for text in ("c", "de")]
    assert ["".join(token.text for token in score.tokens) for score in scores] == ["c", "de"]


async def test_a_stop_string_ends_the_work_too(front: Front, request_for: Make) -> None:
    [completion] = await complete(front, request_for("a b ", stop="b", max_tokens=50, ignore_eos=True))
    assert (completion.text, completion.finish_reason, completion.finish.matched) == ("a ", "stop", "b")
    assert await idle(front)


async def test_what_the_tokenizer_refuses_raises_invalid_request(front: Front, request_for: Make) -> None:
    with pytest.raises(InvalidRequest, match="64") as caught:
        await complete(front, request_for("x" * 100))
    assert caught.value.field == "prompt"
    assert await idle(front)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [("error", RequestFailed), ("overloaded", Overloaded), ("unmet", InvalidRequest), ("abort", RequestAborted)],
)
async def test_what_the_scheduler_ends_raises_its_kind(
    front: Front, request_for: Make, behaviour: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="as asked"):
        await complete(front, request_for("a", cache_salt=behaviour, n=2))
    assert (await complete(front, request_for("a", max_tokens=2)))[0].text == "aa"
    assert await idle(front)


async def test_too_many_open_sequences_are_refused_at_once(front: Front, request_for: Make) -> None:
    assert front.config.capacity == 8
    streams = [front.stream(request_for("a", n=4, max_tokens=60, ignore_eos=True)) for _ in range(2)]
    with pytest.raises(Overloaded, match="8 of 8"):
        front.stream(request_for("a"))
    for stream in streams:
        stream.close()
    assert (await complete(front, request_for("a", max_tokens=1)))[0].text == "a"


async def test_more_sequences_than_ever_fit_are_the_senders_fault(
    front: Front, request_for: Make, score_for: Make
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        front.stream(request_for("a", n=9))
    assert caught.value.field == "n"
    with pytest.raises(InvalidRequest) as caught:
        front.stream(score_for("a", ["b"] * 9))
    assert caught.value.field == "continuations"


async def test_an_open_id_is_refused_and_a_used_one_is_not(front: Front, request_for: Make) -> None:
    submit = request_for("ab", request_id="twice", max_tokens=60)
    with front_of(front, submit) as stream:
        with pytest.raises(InvalidRequest) as caught:
            front.stream(submit)
        assert caught.value.field == "request_id"
        await anext(stream)
    [completion] = await complete(front, request_for("xy", request_id="twice", max_tokens=4))
    assert completion.text == "xyxy", "no chunk of the abandoned request may come here"


class front_of:
    """A stream in a plain `with`."""

    def __init__(self, front: Front, submit: Submit) -> None:
        self.stream = front.stream(submit)

    def __enter__(self):
        return self.stream

    def __exit__(self, *_: object) -> None:
        self.stream.close()


async def test_an_abort_ends_the_stream_and_the_work(front: Front, request_for: Make) -> None:
    before = (await front.stats()).aborted
    stream = front.stream(request_for("ab", max_tokens=60, n=2, request_id="gone"))
    await anext(stream)
    assert front.abort("gone")
    assert not front.abort("gone")
    assert not front.abort("never there")
    with pytest.raises(RequestAborted, match="gone"):
        await collect(stream)
    assert await idle(front)
    assert (await front.stats()).aborted == before + 2


async def test_an_abandoned_stream_is_aborted_however_it_is_left(front: Front, request_for: Make) -> None:
    def submit() -> Submit:
        return request_for("ab", max_tokens=400, ignore_eos=True)

    before = await front.stats()
    async with front.stream(submit()) as stream:
        await anext(stream)
    with pytest.raises(RuntimeError):
        async with front.stream(submit()) as stream:
            raise RuntimeError
    async for _ in front.stream(submit()):
        break
    reader = asyncio.create_task(collect(front.stream(submit())))
    await asyncio.sleep(0.05)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    front.stream(submit())  # never read
    await asyncio.sleep(0)
    assert await idle(front)
    stats = await front.stats()
    assert stats.finished == before.finished
    assert stats.aborted >= before.aborted + 3  # two may not have reached the scheduler


async def test_an_unread_stream_that_is_complete_needs_no_abort(front: Front, request_for: Make) -> None:
    before = (await front.stats()).aborted
    stream = front.stream(request_for("ab", max_tokens=3))
    while front._requests.samples:
        await asyncio.sleep(0.01)
    stream.close()
    assert (await front.stats()).aborted == before


async def test_control_questions(front: Front) -> None:
    assert await front.flush_cache() == 42
    first, second = await asyncio.gather(front.stats(), front.stats())
    assert first.call_id != second.call_id
    assert first.total == 4096


async def test_info_after_the_start(front: Front) -> None:
    info = front.info
    assert info.max_context == 64
    assert info.model.architecture == "fake"
    assert info.timings["total"] >= info.timings["worker up"] > 0


async def test_nothing_is_served_before_the_start_or_after_the_stop(
    module_fakes: pytest.MonkeyPatch, tiny_model: Path, request_for: Make
) -> None:
    front = Front(config_for(tiny_model))
    assert not front.alive
    with pytest.raises(EngineDead):
        front.stream(request_for("a"))
    await front.start()
    stream = front.stream(request_for("ab", max_tokens=60))
    await anext(stream)
    await front.stop()
    with pytest.raises(RequestAborted):
        await collect(stream)
    assert not front.alive
    with pytest.raises(EngineDead):
        front.stream(request_for("a"))
    with pytest.raises(EngineDead):
        await front.stats()
    with pytest.raises(EngineDead):
        await front.start()
    await front.stop()
