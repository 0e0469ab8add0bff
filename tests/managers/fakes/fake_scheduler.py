"""Stands in for the scheduler: every sequence's completion is its own prompt, over and over, a token every few ms."""

import itertools
import os
from typing import Any, Literal

from sapwood.managers.wire.answers import Finish, TokenBatch, TokenChunk
from sapwood.managers.wire.child import Child, run_child
from sapwood.managers.wire.inboxes import ToScheduler
from sapwood.managers.wire.lifecycle import ConfigureScheduler, Shutdown
from sapwood.managers.wire.questions import FlushCall, Flushed, Stats, StatsCall
from sapwood.managers.wire.requests import Abort, StopMatched, TokenizedRequest
from sapwood.managers.wire.sockets import Inbox, Outbox
from sapwood.runtime.records import TopLogprobs, unpack_ids
from sapwood.runtime.wanted import PromptLogprobs

FAULTS: dict[str, Literal["load", "request"]] = {"overloaded": "load", "unmet": "request"}

PAUSE = float(os.environ.get("FAKE_SCHEDULER_PAUSE", "0.002"))


class FakeScheduler:
    def __init__(self, child: Child) -> None:
        self.inbox: Inbox = Inbox(child.link, "scheduler", ToScheduler)
        self.config = child.configuration(self.inbox, ConfigureScheduler)
        self.front = child.front
        self.tokenizer = Outbox(child.link, "tokenizer")
        self.open: dict[tuple[str, int], tuple[TokenizedRequest, Any, int]] = {}
        self.aborted = 0
        self.finished = 0
        child.ready({})

    def run(self) -> None:
        while True:
            for message in self.inbox.drain(PAUSE if self.open else None):
                if isinstance(message, Shutdown):
                    return
                self.take(message)
            chunks = [self.advance(key) for key in list(self.open)]
            if chunks:
                self.tokenizer.send(TokenBatch(chunks))

    def take(self, message: Any) -> None:
        match message:
            case TokenizedRequest():
                self.submit(message)
            case Abort():
                for key in [key for key in self.open if key[0] == message.request_id]:
                    del self.open[key]
                    self.aborted += 1
            case StopMatched():
                if self.open.pop((message.request_id, message.index), None) is not None:
                    self.finished += 1
            case StatsCall():
                self.front.send(self.stats(message.call_id))
            case FlushCall():
                self.front.send(Flushed(message.call_id, 42))

    def submit(self, message: TokenizedRequest) -> None:
        ids = unpack_ids(message.token_ids).tolist()
        behaviour = message.namespace
        if behaviour in ("error", "overloaded", "unmet", "abort"):
            reason = "abort" if behaviour == "abort" else "error"
            finish = Finish(reason, message="as asked", fault=FAULTS.get(behaviour, "server"))
            chunk = TokenChunk(message.request_id, message.index, [], [], [], 0, finish=finish)
            self.tokenizer.send(TokenBatch([chunk]))
        else:
            self.open[message.request_id, message.index] = (message, itertools.cycle(ids), 0)

    def advance(self, key: tuple[str, int]) -> TokenChunk:
        message, ids, count = self.open[key]
        prompt = unpack_ids(message.token_ids).tolist()
        answer = None
        if message.wanted is not None and count == 0:
            scored = [-float(token_id) for token_id in prompt[message.wanted.start :]]
            answer = PromptLogprobs(message.wanted.start, scored, [TopLogprobs([], [])] * len(scored))
        token_ids = [next(ids)] if message.sampling.max_tokens else []
        count += 1
        finish = None
        if token_ids and token_ids[0] in message.stop_ids and count > message.sampling.min_tokens:
            finish = Finish("stop", matched=token_ids[0])
        elif count >= message.sampling.max_tokens:
            finish = Finish("length")
        if finish is None:
            self.open[key] = (message, ids, count)
        else:
            del self.open[key]
            self.finished += 1
        wanted = message.sampling.logprobs is not None
        top = [TopLogprobs([1], [-0.5])] if message.sampling.logprobs else [TopLogprobs([], [])]
        return TokenChunk(message.request_id, key[1], token_ids, [-1.0] * wanted, top * wanted, 0, answer, finish)

    def stats(self, call_id: int) -> Stats:
        total = self.config.total_slots
        zeros = dict.fromkeys(Stats.__struct_fields__, 0)
        known = {"call_id": call_id, "total": total, "free": total, "running": len(self.open)}
        return Stats(**{**zeros, **known, "aborted": self.aborted, "finished": self.finished})


def serve(child: Child) -> None:
    FakeScheduler(child).run()


if __name__ == "__main__":
    run_child("scheduler", serve)
