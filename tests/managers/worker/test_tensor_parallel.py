"""An engine whose model is divided over several worker processes: the same answers, and the same clean ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapwood import Engine
from sapwood.managers.front.supervisor import Supervisor
from sapwood.managers.wire.child import RANK_LOST, Child
from sapwood.managers.wire.errors import ConfigError, EngineDead
from sapwood.managers.wire.inboxes import ToWorker
from sapwood.managers.wire.lifecycle import Shutdown
from sapwood.managers.wire.sockets import Inbox, Link
from sapwood.managers.worker import process as worker
from sapwood.runtime.errors import ModelError
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import OpenRow, StepPlan

PROMPTS = ["the theory of the thing", "ab", "x" * 70]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["yes", "no"]}},
    "required": ["a"],
    "additionalProperties": False,
}
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "kv_tokens": 1024,
    "chunk_tokens": 32,
    "threads": 1,
    "audit": True,
    "poison_freed": True,
}


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of four heads and two key-value heads, with the tiny model's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=301,
        hidden_size=64,
        intermediate_size=95,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    path = tmp_path_factory.mktemp("divided") / "model"
    shutil.copytree(tiny_model, path)
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine(model, tp=3, **OPTIONS) as engine:
        yield engine


def answers(engine: Engine) -> dict[str, Any]:
    greedy = engine.generate(PROMPTS, max_tokens=12, temperature=0, logprobs=2, ignore_eos=True)
    drawn = engine.generate(PROMPTS[0], max_tokens=12, n=3, seed=4, repetition_penalty=1.1, ignore_eos=True)
    schema = engine.generate(PROMPTS[1], max_tokens=40, seed=1, json_schema=SCHEMA)
    scores = engine.score(PROMPTS[0], [" and the rest", "!"])
    return {
        "tokens": [each.completions[0].token_ids for each in greedy],
        "drawn": [each.token_ids for each in drawn.completions],
        "schema": schema.text,
        "logprobs": [one.logprob for each in greedy for one in each.completions[0].logprobs or []]
        + [one.logprob for each in scores for one in each.tokens],
    }


def gone(pids: dict[str, int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids.values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_an_engine_of_three_ranks_answers_as_one_of_one(engine: Engine, model: Path) -> None:
    with Engine(model, attention_backend="torch", **OPTIONS) as alone:
        expected, info = answers(alone), alone.info.model
    found = answers(engine)
    for name in ("tokens", "drawn", "schema"):
        assert found[name] == expected[name], name
    assert json.loads(found["schema"])["a"] in ("yes", "no")
    assert found["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-4)
    assert len(found["logprobs"]) > 3 * 12
    divided = engine.info.model
    assert (divided.parameters, divided.total_slots) == (info.parameters, info.total_slots)
    assert divided.weight_bytes - info.weight_bytes < 0.2 * info.weight_bytes  # norms, and one key-value head twice
    assert divided.attention_backend == "torch"
    stats = engine.stats()
    assert stats.running == stats.private == stats.pinned == 0
    assert stats.free + stats.evictable == stats.total == 1024


def test_ranks_listen_to_this_machine_only(engine: Engine) -> None:
    for role, pid in engine._front.front.pids.items():
        listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip for each in listening} <= {"127.0.0.1"}, role


@pytest.mark.parametrize("role", ["worker2", "worker"])
@pytest.mark.alone
def test_a_killed_rank_ends_every_request_and_everything_exits(engine: Engine, model: Path, role: str) -> None:
    if not engine._front.front.alive:  # the first case has killed it
        engine = Engine(model, tp=2, **OPTIONS)
    pids = engine._front.front.pids
    streams = [engine.generate_stream(prompt, max_tokens=150, ignore_eos=True) for prompt in PROMPTS]
    for stream in streams:
        next(stream)
    os.kill(pids[role], signal.SIGKILL)
    began = time.monotonic()
    for stream in streams:
        with pytest.raises(EngineDead, match=rf"The {role} process \(pid {pids[role]}\) was killed by SIGKILL"):
            list(stream)
    assert time.monotonic() - began < 5
    if role != "worker":  # without the first one, the others may wait for a plan until the engine is shut down
        assert gone({name: pid for name, pid in pids.items() if name.startswith("worker")}, 5)
    began = time.monotonic()
    engine.shutdown()
    assert time.monotonic() - began < 5
    assert gone(pids, 0)


@pytest.mark.alone
def test_a_rank_that_cannot_start_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], list[str]] = Supervisor._command
    dies = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(Supervisor, "_command", staticmethod(lambda role: dies if role == "worker1" else real(role)))
    began = time.monotonic()
    with pytest.raises(EngineDead, match=r"The worker1 process \(pid \d+\) was killed by SIGKILL"):
        Engine(model, tp=2, **OPTIONS)
    assert time.monotonic() - began < 20


def test_more_ranks_than_heads_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "one_head"
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1, "num_key_value_heads": 1}))
    with pytest.raises(ModelError, match="tp 2 is too large: the model has 1 attention heads, and each rank needs one"):
        Engine(path, tp=2, **OPTIONS)


def test_the_number_of_ranks_is_checked() -> None:
    with pytest.raises(ConfigError, match="tp must be between 1 and 64, not 0"):
        Engine(tp=0)


@pytest.mark.parametrize("ipc", [True, False])
def test_a_link_has_an_inbox_for_every_rank_and_a_place_to_meet(ipc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmq.has", lambda capability: ipc)
    link = Link.create(3)
    try:
        assert link.workers == ["worker", "worker1", "worker2"]
        assert len(set(link.addresses.values())) == 6
        assert all(address.startswith("ipc" if ipc else "tcp://127.0.0.1:") for address in link.addresses.values())
        assert link.directory is not None
        assert link.rendezvous == f"file://{link.directory}/ranks"
        assert Path(link.directory).stat().st_mode & 0o777 == 0o700
        monkeypatch.setenv("SAPWOOD_LINK", link.to_environment())
        assert Link.from_environment() == link
    finally:
        link.remove()
    assert not Path(link.directory).exists()


def test_the_cause_of_a_death_is_named_not_its_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        pid = 7

        def __init__(self, code: int | None) -> None:
            self.poll = lambda: code

    supervisor = Supervisor(Link({}, b"", None), threads=1)
    for codes, sentence in (
        ([None, None], None),
        ([RANK_LOST, -9], "The worker1 process (pid 7) was killed by SIGKILL."),
        ([1, RANK_LOST], "The worker process (pid 7) ended with exit code 1; its log says why."),
        ([None, RANK_LOST], f"The worker1 process (pid 7) ended with exit code {RANK_LOST}; its log says why."),
    ):
        children = {role: Ended(code) for role, code in zip(("worker", "worker1"), codes, strict=True)}
        monkeypatch.setattr(supervisor, "_children", children)
        assert supervisor.dead() == sentence
    monkeypatch.setattr(supervisor, "_children", {})


def test_the_first_rank_passes_plans_on_and_tells_the_others_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = OpenRow(0, Sampling(max_tokens=5, seed=1), [], pack_ids([1, 2]), b"", None, "key")
    plan = StepPlan(1, [], [row], [], *[pack_ids([0])] * 5, sample=b"\1")
    link = Link.create(2)
    inbox: Inbox[Any] = Inbox(link, "worker1", ToWorker)

    def fails(child: Child, followers: worker.Followers) -> None:
        followers.tell(plan)
        raise ModelError("the weights are made of wood")

    monkeypatch.setattr(worker, "_serve", fails)
    try:
        with pytest.raises(ModelError):
            worker.serve(Child("worker", link))
        assert inbox.receive(5) == plan
        assert inbox.receive(5) == Shutdown()
        with pytest.raises(ModelError):
            worker.serve(Child("worker1", link))  # one that follows tells nobody
        assert inbox.receive(0.2) is None
    finally:
        inbox.close()
        link.remove()
