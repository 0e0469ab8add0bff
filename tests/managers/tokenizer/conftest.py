"""A tokenizer process between two inboxes of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.wire.answers import Finish, Rejected, TextChunk, TokenBatch, TokenChunk
from sapwood.managers.wire.inboxes import ToFront, ToScheduler
from sapwood.managers.wire.lifecycle import ConfigureTokenizer, Hello, Limits, Ready, Shutdown
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.requests import Submit, TokenizedRequest
from sapwood.managers.wire.sockets import ENVIRONMENT, Inbox, Link, Outbox
from sapwood.runtime.records import TopLogprobs
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

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
        probe = to_submit(GenerateRequest(prompt="probe"), vocab_size=300, defaults=OPENAI_DEFAULTS)
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
