"""The tokenizer process, driven over its sockets by a test that plays the front and the scheduler."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sapwood.managers.tokenizer import process as tokenizer
from sapwood.managers.tokenizer.process import LONG_WORK
from sapwood.managers.tokenizer.prompt_encoding import PromptEncoder, encoding_work, sample_seed
from sapwood.managers.tokenizer.text_output import SampleOutput
from sapwood.managers.wire.answers import CacheMiss, CacheReport, Finish, Rejected, TextChunk, TokenBatch, TokenChunk
from sapwood.managers.wire.errors import InvalidRequest, PromptTooLong
from sapwood.managers.wire.lifecycle import Limits, Shutdown
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.questions import RenderCall, Rendered
from sapwood.managers.wire.requests import Abort, Chat, Submit, TokenizedRequest
from sapwood.runtime.records import unpack_ids
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.wanted import Wanted
from tests.managers.tokenizer.conftest import MAX_CONTEXT, WAIT, Ids, Make, Rig

# --- in ---------------------------------------------------------------------------------------------------------


def test_text_and_ids_become_one_sequence(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    [request] = rig.submit(request_for(["the", 5, [6], "c"], max_tokens=7))
    assert unpack_ids(request.token_ids).tolist() == [*ids_of("the"), 5, 6, *ids_of("c")]
    assert request.sampling.max_tokens == 7
    assert request.stop_ids == ids_of("<|end|>")


def test_control_tokens_come_from_text_only_where_allowed(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    end = ids_of("<|end|>")[0]
    [plain] = rig.submit(request_for("a<|end|>"))
    assert end not in unpack_ids(plain.token_ids)
    [opened] = rig.submit(request_for("a<|end|>", allow_control_tokens=True))
    assert unpack_ids(opened.token_ids).tolist() == [*ids_of("a"), end]
    [mixed] = rig.submit(request_for(["a<|end|>", 3], allow_control_tokens=True))
    assert unpack_ids(mixed.token_ids).tolist() == [*ids_of("a"), end, 3]


def test_a_conversation_goes_through_the_template(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    [request] = rig.submit(request_for(messages=[{"role": "user", "content": "a<|end|>"}]))
    start, end = ids_of("<|start|>")[0], ids_of("<|end|>")[0]
    ids = unpack_ids(request.token_ids).tolist()
    assert ids[0] == start
    assert ids[-2:] == [end, start]
    assert ids.count(end) == 1
    assert request.sampling.max_tokens == MAX_CONTEXT - len(ids)


def test_where_the_prompt_left_the_cached_path_comes_with_the_first_chunk(
    rig: Rig, ids_of: Ids, request_for: Make
) -> None:
    messages = [{"role": "system", "content": "old"}, {"role": "user", "content": "hi"}]
    [request] = rig.submit(request_for(messages=messages, explain_cache=True))
    position = unpack_ids(request.token_ids).tolist().index(ids_of("h")[0])
    miss = CacheMiss(position, "never_seen", ids_of("bye"), elsewhere=3)
    chunk = rig.text(request.request_id, ids_of("a"), miss=miss)
    text = "<|start|>system\nold<|end|><|start|>user\n"
    assert chunk.cache == CacheReport(position, "never_seen", 1, "user", len(text), "bye", "hi<|end|><|start|>", 3)
    assert rig.text(request.request_id, ids_of("a"), finish=Finish("length")).cache is None


def test_a_template_that_refuses_is_the_senders_fault(rig: Rig, request_for: Make) -> None:
    rejected = rig.rejected(request_for(messages=[{"role": "user", "content": "refuse"}]))
    assert (rejected.kind, rejected.path) == ("invalid", ["messages"])
    assert "no such turns" in str(rejected.error())


@pytest.mark.parametrize("excess", [0, 1, 100])
def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(rig: Rig, request_for: Make, excess: int) -> None:
    rejected = rig.rejected(request_for("x" * (MAX_CONTEXT + excess)))
    assert (rejected.kind, rejected.path) == ("too_long", ["prompt"])
    assert f"maximum context length is {MAX_CONTEXT} tokens" in str(rejected.error())
    assert type(rejected.error()) is PromptTooLong
    assert str(MAX_CONTEXT + excess) in str(rejected.error())
    assert str(MAX_CONTEXT) in str(rejected.error())


def test_a_prompt_of_absurd_size_is_refused_too(rig: Rig, request_for: Make) -> None:
    rejected = rig.rejected(request_for("x" * 5_000_000))
    assert "at least" in str(rejected.error())


def test_a_conversation_that_the_template_makes_far_too_long_is_refused_unencoded(
    tiny_model: Path, request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Template:
        """Shows what stands elsewhere than in the contents."""

        fragments = ("x" * 100_000, 5)

        def prompt(self, *_: object, **__: object) -> Any:
            return self

    tokenizer = load_tokenizer(tiny_model)
    encoder = PromptEncoder(tokenizer, Template())  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(tokenizer, "encode_fragments", lambda _: pytest.fail("it was encoded"))
    with pytest.raises(InvalidRequest, match="at least") as caught:
        encoder.encode(request_for(messages=[{"role": "user", "content": "a"}]), MAX_CONTEXT)
    assert caught.value.field == "messages"


@pytest.mark.alone
def test_a_long_conversation_that_is_rendered_holds_up_no_request(rig: Rig, request_for: Make) -> None:
    chat = Chat(messages=[{"role": "user", "content": "a <|end|> b " * 200_000}])
    rig.tokenizer.send(RenderCall(77, chat))
    rig.submit(request_for("short"))
    assert rig.front.receive(0) is None, "the rendering came first"
    assert isinstance(rig.front.receive(3 * WAIT), Rendered)


def test_stop_ids_that_leave_nothing_for_min_tokens_are_refused(rig: Rig, request_for: Make) -> None:
    every = list(range(260))  # all that the tiny model has
    rejected = rig.rejected(request_for("x", stop_token_ids=every, min_tokens=1, max_tokens=2))
    assert (rejected.kind, rejected.path) == ("invalid", ["stop_token_ids"])
    assert len(rig.submit(request_for("x", stop_token_ids=every))[0].stop_ids) == 260


def test_all_that_has_to_be_encoded_counts_as_work(request_for: Make, score_for: Make) -> None:
    """A request with much of it must not hold up the short ones."""
    user = {"role": "user", "content": "hi"}
    tool = {"type": "function", "function": {"name": "f", "description": "x" * LONG_WORK}}
    for large in (
        request_for("x" * LONG_WORK),
        request_for([5] * LONG_WORK),
        request_for(messages=[user] * LONG_WORK),
        request_for(messages=[user | {"name": "x" * LONG_WORK}]),
        request_for(messages=[user], tools=[tool]),
        request_for(messages=[user], template_kwargs={"x": "x" * LONG_WORK}),
        score_for("x" * (LONG_WORK // 50), ["y"] * 51),
    ):
        assert encoding_work(large) > LONG_WORK
    assert encoding_work(request_for("x" * 1000)) < LONG_WORK


def test_the_longest_prompt_leaves_one_token(rig: Rig, request_for: Make) -> None:
    [request] = rig.submit(request_for("x" * (MAX_CONTEXT - 1), max_tokens=50, ignore_eos=True))
    assert request.sampling.max_tokens == 1
    assert request.stop_ids == []


def test_samples_differ_in_their_seeds_only(rig: Rig, request_for: Make) -> None:
    requests = rig.submit(request_for("ab", n=3, seed=11, stop_token_ids=[4]), 3)
    assert [request.index for request in requests] == [0, 1, 2]
    assert [request.sampling.seed for request in requests] == [sample_seed(11, i) for i in range(3)]
    assert len({request.sampling.seed for request in requests}) == 3
    assert requests[0].sampling.seed == 11
    assert all(4 in request.stop_ids for request in requests)
    assert len({request.token_ids for request in requests}) == 1


def test_sample_seeds_fit_63_bits_and_do_not_collide() -> None:
    seeds = [sample_seed(seed, index) for seed in (0, 1, 2**63 - 1) for index in range(1, 1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == len(seeds)


def test_continuations_are_tokenized_with_the_prompt(rig: Rig, ids_of: Ids, score_for: Make) -> None:
    joined, apart, ids = rig.submit(score_for("at", ["he", "x", [7, 8]], logprobs=2), 3)
    assert unpack_ids(joined.token_ids).tolist() == ids_of("athe")
    assert joined.wanted == Wanted("logprobs", 1, 2), "the t of 'at' became part of 'the'"
    assert unpack_ids(apart.token_ids).tolist() == ids_of("atx")
    assert apart.wanted == Wanted("logprobs", 2, 2)
    assert unpack_ids(ids.token_ids).tolist() == [*ids_of("at"), 7, 8]
    assert ids.wanted == Wanted("logprobs", 2, 2)
    assert {each.sampling.max_tokens for each in (joined, apart, ids)} == {0}


def test_text_after_ids_is_tokenized_alone(rig: Rig, ids_of: Ids, score_for: Make) -> None:
    [request] = rig.submit(score_for(["a", ids_of("t")], ["he"]))
    assert unpack_ids(request.token_ids).tolist() == [*ids_of("at"), *ids_of("he")]
    assert request.wanted == Wanted("logprobs", 2)


def test_where_the_first_token_is_scored_all_are_scored_whole_behind_the_start_of_a_text(
    rig: Rig, ids_of: Ids, score_for: Make
) -> None:
    apart, joined = rig.submit(score_for("t", ["x", "he"]), 2)
    end = ids_of("<|end|>")
    assert unpack_ids(apart.token_ids).tolist() == [*end, *ids_of("tx")]
    assert apart.wanted == Wanted("logprobs", 1)
    assert unpack_ids(joined.token_ids).tolist() == [*end, *ids_of("the")]
    assert joined.wanted == Wanted("logprobs", 1)
    [alone] = rig.submit(score_for("t", ["x"]))
    assert unpack_ids(alone.token_ids).tolist() == ids_of("tx"), "nothing is put before what can do without"


def test_a_continuation_that_is_too_long_is_refused(rig: Rig, score_for: Make) -> None:
    rejected = rig.rejected(score_for("a", ["x" * MAX_CONTEXT]))
    assert rejected.path == ["continuations", 0]
    assert str(MAX_CONTEXT + 1) in str(rejected.error())


def test_an_abort_is_passed_on_after_its_request(rig: Rig, request_for: Make) -> None:
    submit = request_for("ab")
    rig.submit(submit)
    rig.tokenizer.send(Abort(submit.request_id))
    assert rig.scheduler.receive(WAIT) == Abort(submit.request_id)
    rig.feed(submit.request_id, [1])  # a late chunk goes nowhere
    assert rig.nothing_came()


def test_an_abort_right_behind_a_long_prompt_leaves_nothing_open(rig: Rig, request_for: Make) -> None:
    rig.tokenizer.send(Limits(50_000))
    [long] = rig.submit(request_for("x" * 30_000, max_tokens=3))
    assert len(unpack_ids(long.token_ids)) == 30_000
    for i in range(20):
        submit = request_for("x" * 30_000 if i % 2 else "abc", max_tokens=3)
        rig.tokenizer.send(submit)
        rig.tokenizer.send(Abort(submit.request_id))
    probe = request_for("probe")
    rig.tokenizer.send(probe)
    seen: list[Any] = []
    while not seen or seen[-1].request_id != probe.request_id:
        seen.append(rig.scheduler.receive(WAIT))
    opened = [each.request_id for each in seen[:-1] if isinstance(each, TokenizedRequest)]
    closed = [each.request_id for each in seen[:-1] if isinstance(each, Abort)]
    assert opened == closed
    rig.tokenizer.send(Limits(MAX_CONTEXT))


class Script:
    """An inbox that gives these messages, with time between them, then Shutdown."""

    def __init__(self, *messages: Any) -> None:
        self._messages = [*messages, Shutdown()]

    async def receive(self) -> Any:
        await asyncio.sleep(0.05)
        return self._messages.pop(0)


class Sent(list[Any]):
    """An outbox that keeps what is sent."""

    send = list.append


async def test_a_failure_inside_hurts_only_its_request(
    tiny_model: Path, request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_front, to_scheduler = Sent(), Sent()
    monkeypatch.setattr(tokenizer, "Outbox", lambda link, role: to_scheduler)
    child: Any = SimpleNamespace(front=to_front, link=None, log=logging.getLogger("test"))
    process = tokenizer.TokenizerProcess(child, tiny_model, EngineConfig())
    encode, take = PromptEncoder.encode, SampleOutput.take

    def fragile_encode(self: PromptEncoder, submit: Submit, max_context: int) -> Any:
        return 1 / 0 if submit.priority == 1 else encode(self, submit, max_context)

    def fragile_take(self: SampleOutput, chunk: TokenChunk) -> TextChunk:
        return take(self, chunk) if chunk.token_ids != [13] else 1 / 0  # type: ignore[return-value]

    monkeypatch.setattr(PromptEncoder, "encode", fragile_encode)
    monkeypatch.setattr(SampleOutput, "take", fragile_take)
    good, unreadable, unsayable = request_for("a"), request_for("b", priority=1), request_for("c")
    chunks = [
        TokenChunk(each.request_id, 0, ids, [], [], 0, finish=Finish("length"))
        for each, ids in ((unsayable, [13]), (good, [5]))
    ]
    await process.run(Script(Limits(64), good, unreadable, unsayable, TokenBatch(chunks)))  # type: ignore[arg-type]
    assert [(type(each), each.request_id) for each in to_front] == [
        (Rejected, unreadable.request_id),
        (Rejected, unsayable.request_id),
        (TextChunk, good.request_id),
    ]
    assert [each.kind for each in to_front[:2]] == ["failed", "failed"]
    assert Abort(unsayable.request_id) in to_scheduler
