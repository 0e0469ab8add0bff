"""The tokenizer process between a request with a constraint and its answer: compiled beside its loop, calls parsed."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from sapwood.constrained.spec import Compiled, Unenforced
from sapwood.managers.tokenizer import process as tokenizer
from sapwood.managers.tokenizer.grammars import pool as grammar_pool
from sapwood.managers.tokenizer.grammars.service import GrammarService
from sapwood.managers.wire import constraint_body as sizes
from sapwood.managers.wire.answers import Effort, Finish, Rejected, TextChunk, TokenBatch, TokenChunk
from sapwood.managers.wire.lifecycle import Limits, Shutdown
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.requests import Abort, StopMatched, Submit, TokenizedRequest
from sapwood.runtime.records import unpack_ids

FAKE = Path(__file__).parents[1] / "fakes" / "fake_compiler.py"
USER = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
Make = Callable[..., Submit]


class Sent(asyncio.Queue[Any]):
    """An outbox that keeps what is sent."""

    send = asyncio.Queue.put_nowait

    async def next(self) -> Any:
        return await asyncio.wait_for(self.get(), 20)


class Rig:
    """A tokenizer process in this one, between a front and a scheduler that the test plays."""

    def __init__(self, process: tokenizer.TokenizerProcess, front: Sent, scheduler: Sent) -> None:
        self.process, self.front, self.scheduler = process, front, scheduler
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.inbox.receive = self.inbox.get  # type: ignore[attr-defined]
        self.running = asyncio.create_task(process.run(self.inbox))  # type: ignore[arg-type]
        self.send(Limits(512))

    def send(self, message: Any) -> None:
        self.inbox.put_nowait(message)

    async def submit(self, submit: Submit) -> TokenizedRequest:
        self.send(submit)
        return await self.scheduler.next()

    async def text(self, request: TokenizedRequest, ids: list[int], **fields: Any) -> TextChunk:
        chunk = TokenChunk(request.request_id, request.index, ids, [], [], 0, **fields)
        self.send(TokenBatch([chunk]))
        return await self.front.next()


@pytest.fixture
async def rig(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    front, scheduler = Sent(), Sent()
    monkeypatch.setattr(tokenizer, "Outbox", lambda link, role: scheduler)
    child: Any = SimpleNamespace(front=front, link=None, log=logging.getLogger("test"))
    rig = Rig(tokenizer.TokenizerProcess(child, tiny_model, EngineConfig()), front, scheduler)
    yield rig
    rig.send(Shutdown())
    await asyncio.wait_for(rig.running, 10)
    assert front.empty()
    assert scheduler.empty()


@pytest.fixture
def fake_compilers(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From now on a constraint's body says what happens; returns the file where its compilers write what they got."""
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setattr(grammar_pool, "COMPILE_SECONDS", 1.0)
    rig.process._grammars = GrammarService(Path("model"), (sys.executable, str(FAKE), str(log)))
    return log


def ids_of(tiny: tokenizers.Tokenizer, text: str) -> list[int]:
    return tiny.encode(text).ids


async def test_every_sample_has_the_compiled_constraint(rig: Rig, request_for: Make) -> None:
    rig.send(request_for("a", json_schema=PARAMETERS, n=2))
    first, second = await rig.scheduler.next(), await rig.scheduler.next()
    assert isinstance(first.grammar, Compiled)
    assert first.grammar == second.grammar
    assert "required" in first.grammar.enforced
    assert (await rig.submit(request_for("a"))).grammar is None


async def test_what_is_relaxed_is_said_once_and_effort_with_the_end(
    rig: Rig, request_for: Make, tiny: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    relaxed = [Unenforced("format", "/format", "unknown")]

    async def compile_(_: Any) -> Compiled:
        return Compiled("key", "llguidance", b"", relaxed=relaxed)

    monkeypatch.setattr(rig.process._grammars, "compile", compile_)
    rig.send(request_for("a", regex="b", n=2))
    zero, one = await rig.scheduler.next(), await rig.scheduler.next()
    assert (await rig.text(one, [3])).relaxed == []
    assert (await rig.text(zero, [3])).relaxed == relaxed
    effort = Effort(3, 2, 1, 1)
    last = await rig.text(zero, [4], finish=Finish("stop"), effort=effort)
    assert (last.relaxed, last.effort) == ([], effort)


async def test_a_refusal_names_its_field_and_is_the_same_again(
    rig: Rig, request_for: Make, fake_compilers: Path
) -> None:
    for _ in range(2):
        rig.send(request_for("a", regex="refuse way"))
        answer = await rig.front.next()
        assert isinstance(answer, Rejected)
        assert (answer.kind, answer.path, str(answer.error())) == ("invalid", ["regex"], "regex: No way.")
    assert fake_compilers.read_text() == "refuse way\n"  # noqa: ASYNC240
    rig.send(request_for("a", regex=f"refuse {'way' * 9000}"))
    assert len(str((await rig.front.next()).error())) < 600


async def test_slow_deadly_and_faulty_constraints_hurt_only_their_senders(
    rig: Rig, request_for: Make, fake_compilers: Path
) -> None:
    bad = [request_for("a", regex=body) for body in ("sleep 30", "crash", "fail")]
    for each in bad:
        rig.send(each)
    assert (await rig.submit(request_for("b"))).grammar is None, "it does not wait for them"
    assert (await rig.submit(request_for("c", regex="ok"))).grammar is not None
    answers = [await rig.front.next() for _ in bad]
    assert {each.request_id: each.kind for each in answers} == dict(
        zip((each.request_id for each in bad), ("invalid", "invalid", "failed"))
    )


async def test_a_request_that_waits_for_its_grammar_can_be_aborted(
    rig: Rig, request_for: Make, fake_compilers: Path
) -> None:
    waiting = request_for("a", regex="sleep 0.3")
    rig.send(waiting)
    await asyncio.sleep(0.15)
    rig.send(Abort(waiting.request_id))
    assert (await rig.submit(request_for("a", regex="sleep 0.3"))).request_id != waiting.request_id
    assert fake_compilers.read_text() == "sleep 0.3\n", "what has begun goes on, for whoever wants it next"  # noqa: ASYNC240


# --- tools ------------------------------------------------------------------------------------------------------------


async def constraint_body(rig: Rig, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The body of the constraint under which the tools of a request are called."""
    seen = []

    async def compile_(constraint: Any) -> Compiled:
        seen.append(constraint)
        return Compiled("key", "llguidance", b"")

    with monkeypatch.context() as patch:
        patch.setattr(rig.process._grammars, "compile", compile_)
        await rig.submit(submit)
    assert seen[0].kind == "tool_calls"
    return {**json.loads(seen[0].body), "strict": seen[0].strict}


async def test_tools_are_a_constraint_in_the_models_format(
    rig: Rig, request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await constraint_body(rig, request_for(messages=[USER], tools=[ADD]), monkeypatch)
    begin = '<tool_call>\n{"name": "add", "arguments": '
    assert body["calls"] == [{"begin": [begin], "schema": PARAMETERS, "end": ["}\n</tool_call>"]}]
    assert (body["triggers"], body["required"], body["once"]) == (["<tool_call>"], False, False)
    assert "answer" not in body
    assert body["strict"] is True
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    body = await constraint_body(rig, request_for(messages=[USER], tools=[ADD], **required), monkeypatch)
    assert (body["required"], body["once"]) == (True, True)
    body = await constraint_body(rig, request_for(messages=[USER], tools=[ADD], regex="a+"), monkeypatch)
    assert body["answer"] == {"kind": "regex", "body": "a+"}
    wanted = request_for(messages=[USER], tools=[ADD], regex="a+", tool_choice="required")
    assert "answer" not in await constraint_body(rig, wanted, monkeypatch)
    loose = {"type": "function", "function": {"name": "f", "strict": False}}
    body = await constraint_body(rig, request_for(messages=[USER], tools=[ADD, loose]), monkeypatch)
    assert body["strict"] is False


async def test_tools_are_shown_to_a_model_whose_template_cannot(
    rig: Rig, request_for: Make, tiny: tokenizers.Tokenizer
) -> None:
    request = await rig.submit(request_for(messages=[USER], tools=[ADD], tool_choice="none"))
    text = tiny.decode(unpack_ids(request.token_ids).tolist(), skip_special_tokens=False)
    assert request.grammar is None
    assert text.startswith("<|start|>system\nYou can call functions.")
    assert json.dumps(ADD["function"]) in text


async def test_calls_in_the_text_become_pieces_of_calls(
    rig: Rig, request_for: Make, tiny: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compile_(_: Any) -> Compiled:
        return Compiled("key", "llguidance", b"")

    monkeypatch.setattr(rig.process._grammars, "compile", compile_)
    request = await rig.submit(request_for(messages=[USER], tools=[ADD]))
    said = 'I add. <tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    ids = ids_of(tiny, said)
    chunks = [await rig.text(request, [token_id]) for token_id in ids]
    chunks.append(await rig.text(request, [], finish=Finish("stop")))
    assert "".join(chunk.text for chunk in chunks) == "I add."
    pieces = [piece for chunk in chunks for piece in chunk.tool_calls]
    assert [(bool(piece.id), piece.name) for piece in pieces if piece.id or piece.name] == [(True, "add")]
    assert "".join(piece.arguments for piece in pieces) == '{"a": 2}'
    assert chunks[-1].finish == Finish("tool_calls")
    assert chunks[-1].completion_tokens == len(ids)


async def test_text_after_a_call_ends_the_sample(
    rig: Rig, request_for: Make, tiny: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compile_(_: Any) -> Compiled:
        return Compiled("key", "llguidance", b"")

    monkeypatch.setattr(rig.process._grammars, "compile", compile_)
    request = await rig.submit(request_for(messages=[USER], tools=[ADD]))
    whole = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    assert (await rig.text(request, ids_of(tiny, whole + "\n"))).finish is None
    last = await rig.text(request, ids_of(tiny, "And so on"))
    assert (last.text, last.finish) == ("", Finish("tool_calls"))
    assert await rig.scheduler.next() == StopMatched(request.request_id, 0)


@pytest.mark.parametrize(
    ("said", "finish", "reason"),
    [
        ("No tool fits.", Finish("stop"), "stop"),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>', Finish("length"), "length"),
        ('<tool_call>\n{"name": "add", "arguments": {"a"', Finish("stop"), "stop"),
    ],
)
async def test_only_a_whole_call_at_a_natural_end_is_the_reason_for_it(
    rig: Rig,
    request_for: Make,
    tiny: tokenizers.Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    finish: Finish,
    reason: str,
) -> None:
    async def compile_(_: Any) -> Compiled:
        return Compiled("key", "llguidance", b"")

    monkeypatch.setattr(rig.process._grammars, "compile", compile_)
    request = await rig.submit(request_for(messages=[USER], tools=[ADD]))
    chunk = await rig.text(request, ids_of(tiny, said), finish=finish)
    assert chunk.finish is not None
    assert chunk.finish.reason == reason


async def test_a_template_with_another_format_for_tools_needs_the_option(
    rig: Rig, request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.process, "_tools", None)
    rig.send(request_for(messages=[USER], tools=[ADD]))
    answer = await rig.front.next()
    assert isinstance(answer, Rejected)
    assert (answer.kind, answer.path) == ("invalid", ["tools"])
    assert "hermes" in str(answer.error())
    assert (await rig.submit(request_for(messages=[USER], tools=[ADD], tool_choice="none"))).grammar is None


async def test_tools_that_are_too_large_together_are_refused(
    rig: Rig, request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MAX_CONSTRAINT_BYTES", 100)
    rig.send(request_for(messages=[USER], tools=[ADD]))
    answer = await rig.front.next()
    assert isinstance(answer, Rejected)
    assert answer.path == ["tools"]
