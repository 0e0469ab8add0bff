"""The tokenizer process, driven over its sockets by a test that plays the front and the scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from msgspec.structs import replace

from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.tokenizer import process as tokenizer
from sapwood.managers.tokenizer.process import LONG_WORK
from sapwood.managers.tokenizer.prompt_encoding import PromptEncoder, encoding_work, sample_seed
from sapwood.managers.tokenizer.text_output import SampleOutput
from sapwood.managers.wire.answers import Finish, Rejected, TextChunk, TokenBatch, TokenChunk
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.inboxes import ToFront, ToScheduler
from sapwood.managers.wire.lifecycle import ConfigureTokenizer, Hello, Limits, Ready, Shutdown
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.questions import RenderCall, Rendered
from sapwood.managers.wire.requests import Abort, Chat, StopMatched, Submit, TokenizedRequest
from sapwood.managers.wire.sockets import ENVIRONMENT, Inbox, Link, Outbox
from sapwood.runtime.records import TopLogprobs, unpack_ids
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.wanted import HiddenStates, PromptLogprobs, Wanted

MAX_CONTEXT = 64
WAIT = 10.0
NO_TOP = TopLogprobs([], [])


class Rig:
    """A running tokenizer process between two inboxes of the test's own."""

    def __init__(self, model: Path) -> None:
        self.link = Link.create()
        self.front: Inbox[Any] = Inbox(self.link, "front", ToFront)
        self.scheduler: Inbox[Any] = Inbox(self.link, "scheduler", ToScheduler)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sapwood.managers.tokenizer"],
            stdin=subprocess.PIPE,
            env={**os.environ, ENVIRONMENT: self.link.to_environment()},
        )
        assert isinstance(self.front.receive(WAIT), Hello)
        self.tokenizer = Outbox(self.link, "tokenizer")
        self.tokenizer.send(ConfigureTokenizer(str(model), EngineConfig(log_level="warning")))
        assert isinstance(self.front.receive(WAIT), Ready)
        self.tokenizer.send(Limits(MAX_CONTEXT))

    def submit(self, submit: Submit, count: int = 1) -> list[TokenizedRequest]:
        """What reaches the scheduler of it."""
        self.tokenizer.send(submit)
        return [self._received(self.scheduler, TokenizedRequest) for _ in range(count)]

    def rejected(self, submit: Submit) -> Rejected:
        self.tokenizer.send(submit)
        return self._received(self.front, Rejected)

    def feed(self, request_id: str, ids: list[int], index: int = 0, **fields: Any) -> None:
        chunk = TokenChunk(request_id, index, ids, **{"logprobs": [], "top": [], "cached_tokens": 0, **fields})
        self.tokenizer.send(TokenBatch([chunk]))

    def text(self, request_id: str, ids: list[int], index: int = 0, **fields: Any) -> TextChunk:
        """The front's chunk for these tokens of the scheduler's."""
        self.feed(request_id, ids, index, **fields)
        return self._received(self.front, TextChunk)

    def nothing_came(self) -> bool:
        """Whether all that was sent so far has led to no message that the test has not read."""
        probe = to_submit(GenerateRequest(prompt="probe"), vocab_size=300)
        self.tokenizer.send(probe)
        reached = self.scheduler.receive(WAIT)
        self.feed(probe.request_id, [], finish=Finish("length"))
        answer = self.front.receive(WAIT)
        return [getattr(each, "request_id", None) for each in (reached, answer)] == [probe.request_id] * 2

    @staticmethod
    def _received(inbox: Inbox[Any], kind: type) -> Any:
        message = inbox.receive(WAIT)
        assert isinstance(message, kind), message
        return message

    def close(self) -> int:
        self.tokenizer.send(Shutdown())
        code = self.process.wait(WAIT)
        self.link.remove()
        return code


@pytest.fixture(scope="module")
def rig(tiny_model: Path) -> Iterator[Rig]:
    rig = Rig(tiny_model)
    yield rig
    assert rig.nothing_came()
    assert rig.close() == 0


@pytest.fixture
def ids_of(tiny: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: tiny.encode(text).ids


Ids = Callable[[str], list[int]]
Make = Callable[..., Submit]


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


def test_a_template_that_refuses_is_the_senders_fault(rig: Rig, request_for: Make) -> None:
    rejected = rig.rejected(request_for(messages=[{"role": "user", "content": "refuse"}]))
    assert (rejected.kind, rejected.path) == ("invalid", ["messages"])
    assert "no such turns" in str(rejected.error())


@pytest.mark.parametrize("excess", [0, 1, 100])
def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(rig: Rig, request_for: Make, excess: int) -> None:
    rejected = rig.rejected(request_for("x" * (MAX_CONTEXT + excess)))
    assert (rejected.kind, rejected.path) == ("invalid", ["prompt"])
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

        def render(self, *_: object, **__: object) -> list[str | int]:
            return ["x" * 100_000, 5]

    tokenizer = load_tokenizer(tiny_model)
    monkeypatch.setattr(tokenizer, "encode_fragments", lambda _: pytest.fail("it was encoded"))
    encoder = PromptEncoder(tokenizer, Template())  # pyright: ignore[reportArgumentType]
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


# --- out --------------------------------------------------------------------------------------------------------


def open_sample(rig: Rig, submit: Submit) -> str:
    rig.submit(submit)
    return submit.request_id


def test_tokens_become_text_with_their_counts(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("the"))
    first = rig.text(sample, ids_of("ab"), cached_tokens=0)
    last = rig.text(sample, ids_of("c"), finish=Finish("length"))
    assert (first.text, first.completion_tokens, first.prompt_tokens, first.finish) == ("ab", 2, 1, None)
    assert (last.text, last.completion_tokens, last.finish) == ("c", 3, Finish("length"))


def test_a_character_in_pieces_is_held_until_whole_and_flushed_at_the_end(
    rig: Rig, ids_of: Ids, request_for: Make
) -> None:
    sample = open_sample(rig, request_for("a"))
    pieces = ids_of("🚲é")
    texts = [rig.text(sample, [piece]).text for piece in pieces[:-1]]
    assert "".join(texts) == "🚲"
    assert rig.text(sample, [], finish=Finish("length")).text == "\ufffd"


def test_a_stop_string_over_several_chunks_ends_the_sample(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["ck bro"]))
    chunks = [rig.text(sample, [token]) for token in ids_of("quick bro")]
    assert "".join(chunk.text for chunk in chunks) == "qui"
    assert chunks[-1].finish == Finish("stop", matched="ck bro")
    assert rig.scheduler.receive(WAIT) == StopMatched(sample, 0)
    rig.feed(sample, ids_of("wn"))
    assert rig.nothing_came()


def test_what_only_might_become_a_stop_is_released(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["ck broom"]))
    chunks = [rig.text(sample, [token]) for token in ids_of("quick brow")]
    assert [chunk.text for chunk in chunks[-2:]] == ["", "ck brow"]
    assert rig.text(sample, ids_of("c"), finish=Finish("length")).text == "c"


def test_a_stop_in_the_last_chunk_wins_over_its_length(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"]))
    chunk = rig.text(sample, ids_of("xbyz"), finish=Finish("length"), logprobs=[-1.0] * 4, top=[NO_TOP] * 4)
    assert (chunk.text, chunk.finish) == ("x", Finish("stop", matched="b"))
    assert (chunk.token_ids, chunk.completion_tokens, len(chunk.logprobs)) == (ids_of("xb"), 2, 2)
    assert rig.nothing_came()


def test_include_stop_keeps_it(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"], include_stop=True))
    assert rig.text(sample, ids_of("xby"), finish=Finish("length")).text == "xb"


def test_stop_strings_wait_for_min_tokens(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", stop=["b"], min_tokens=3))
    chunk = rig.text(sample, ids_of("bbbab"), finish=Finish("length"))
    assert (chunk.text, chunk.completion_tokens) == ("bbba", 5)


def test_the_end_token_counts_but_has_no_text(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    [end] = ids_of("<|end|>")
    for fields in ({}, {"skip_special_tokens": False}):
        sample = open_sample(rig, request_for("a", **fields))
        chunk = rig.text(sample, [*ids_of("b"), end], finish=Finish("stop", matched=end))
        assert (chunk.text, chunk.token_ids, chunk.completion_tokens) == ("b", [*ids_of("b"), end], 2)
    sample = open_sample(rig, request_for("a", skip_special_tokens=False, include_stop=True))
    assert rig.text(sample, [end], finish=Finish("stop", matched=end)).text == "<|end|>"
    [letter] = ids_of("z")
    sample = open_sample(rig, request_for("a", stop_token_ids=[letter]))
    assert rig.text(sample, [letter], finish=Finish("stop", matched=letter)).text == ""
    sample = open_sample(rig, request_for("a", ignore_eos=True))
    assert rig.text(sample, [end, letter], finish=Finish("length")).text == "z"


def test_echo_begins_with_the_prompts_own_text(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    submit = request_for(["<|end|>é", ids_of("b")], echo=True, n=2)
    rig.submit(submit, 2)
    for index in range(2):
        assert rig.text(submit.request_id, ids_of("c"), index).text == "<|end|>ébc"
        assert rig.text(submit.request_id, ids_of("d"), index, finish=Finish("length")).text == "d"


def test_log_probabilities_are_spelled_out(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    sample = open_sample(rig, request_for("a", logprobs=1))
    half = ids_of("é")[0]
    chunk = rig.text(
        sample, [half], logprobs=[-1.5], top=[TopLogprobs(ids_of("the"), [-0.25])], finish=Finish("length")
    )
    [entry] = chunk.logprobs
    assert (entry.token_id, entry.logprob, entry.data, entry.text) == (half, -1.5, "é".encode()[:1], "\ufffd")
    assert [(each.text, each.logprob) for each in entry.top] == [("the", -0.25)]


@pytest.mark.parametrize(("start", "values"), [(0, [None, -2.0, -3.0]), (1, [-2.0, -3.0]), (2, [-3.0])])
def test_prompt_log_probabilities_start_where_wanted(
    rig: Rig, ids_of: Ids, request_for: Make, start: int, values: list[float | None]
) -> None:
    submit = request_for("abc", prompt_logprobs=0, logprob_start=start)
    [request] = rig.submit(submit)
    assert request.wanted == Wanted("logprobs", max(1, start))
    scored = [value for value in values if value is not None]
    answer = PromptLogprobs(max(1, start), scored, [TopLogprobs([], [])] * len(scored))
    before = rig.text(submit.request_id, ids_of("x"))
    with_scores = rig.text(submit.request_id, ids_of("y"), prompt=answer)
    after = rig.text(submit.request_id, ids_of("z"), finish=Finish("length"))
    assert (before.prompt_logprobs, after.prompt_logprobs) == (None, None)
    assert with_scores.prompt_logprobs is not None
    assert [(each.token_id, each.logprob) for each in with_scores.prompt_logprobs] == list(
        zip(ids_of("abc")[start:], values)
    )


def test_a_prompt_of_one_token_has_one_entry_without_a_value(rig: Rig, ids_of: Ids, request_for: Make) -> None:
    submit = request_for("a", prompt_logprobs=2)
    [request] = rig.submit(submit)
    assert request.wanted is None
    chunk = rig.text(submit.request_id, ids_of("x"), finish=Finish("length"))
    assert chunk.prompt_logprobs is not None
    assert [(each.token_id, each.logprob, each.top) for each in chunk.prompt_logprobs] == [(ids_of("a")[0], None, [])]
    assert rig.rejected(request_for("a", prompt_logprobs=0, logprob_start=1)).path == ["logprob_start"]


@pytest.mark.parametrize(("start", "known"), [(-1, 2), (-9, 0), (0, 0), (1, 1)])
def test_hidden_states_pass_through_from_where_they_are_wanted(
    rig: Rig, ids_of: Ids, request_for: Make, start: int, known: int
) -> None:
    submit = replace(request_for("abc", max_tokens=0), wanted=Wanted("hidden", start))
    [request] = rig.submit(submit)
    assert request.wanted == Wanted("hidden", known)
    answer = HiddenStates(known, 2, bytes(8 * (3 - known)))
    chunk = rig.text(submit.request_id, [], finish=Finish("length"), prompt=answer)
    assert (chunk.hidden, chunk.prompt_logprobs) == (answer, None)
    assert rig.rejected(replace(request_for("a"), wanted=Wanted("hidden", 1))).path == ["start"]


def test_a_score_carries_the_continuations_tokens(rig: Rig, ids_of: Ids, score_for: Make) -> None:
    submit = score_for("at", ["he"], logprobs=1)
    rig.submit(submit)
    answer = PromptLogprobs(1, [-4.0], [TopLogprobs(ids_of("x"), [-0.1])])
    chunk = rig.text(submit.request_id, [], finish=Finish("length"), prompt=answer, cached_tokens=1)
    assert chunk.prompt_logprobs is not None
    [entry] = chunk.prompt_logprobs
    assert (entry.text, entry.logprob, entry.top[0].text) == ("the", -4.0, "x")
    assert (chunk.text, chunk.cached_tokens, chunk.prompt_tokens) == ("", 1, 2)


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
