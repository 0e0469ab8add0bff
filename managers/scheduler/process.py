"""The scheduler process: one loop that takes what has arrived, plans, and sends. It must never import torch."""

from __future__ import annotations

import time

from ...radix.prefix_cache import PrefixCache
from ...runtime.records import Message
from ...runtime.step import StepResult
from ..wire.answers import TokenBatch, TokenChunk
from ..wire.child import Child
from ..wire.grammars import GrammarReady
from ..wire.inboxes import ToScheduler
from ..wire.lifecycle import ConfigureScheduler, Shutdown
from ..wire.logs import start_logging
from ..wire.prefixes import PrefixLoaded
from ..wire.questions import FlushCall, Flushed, Stats, StatsCall
from ..wire.requests import Abort, StopMatched, TokenizedRequest
from ..wire.sockets import Inbox, Outbox
from .scheduler import Scheduler


def serve(child: Child) -> None:
    """The body of the child process (see `child.run_child`)."""
    inbox: Inbox[ToScheduler] = Inbox(child.link, "scheduler", ToScheduler)
    config = child.configuration(inbox, ConfigureScheduler)
    started = time.perf_counter()
    start_logging(child.role, config.options.log_level)
    process = SchedulerProcess(
        config,
        inbox,
        to_worker=Outbox(child.link, "worker"),
        to_tokenizer=Outbox(child.link, "tokenizer"),
        to_front=child.front,
    )
    child.ready({"books": time.perf_counter() - started})
    process.run()


class SchedulerProcess:
    """Joins a Scheduler to its sockets. `run` returns on Shutdown."""

    def __init__(
        self,
        config: ConfigureScheduler,
        inbox: Inbox[ToScheduler],
        *,
        to_worker: Outbox,
        to_tokenizer: Outbox,
        to_front: Outbox,
    ) -> None:
        self._inbox = inbox
        self._to_worker = to_worker
        self._to_tokenizer = to_tokenizer
        self._to_front = to_front
        options = config.options
        self._audit = options.audit
        self._cache = PrefixCache(config.total_slots, enabled=options.prefix_cache, poison=options.poison_freed)
        self._scheduler = Scheduler(
            self._cache,
            max_context=config.max_context,
            chunk_tokens=options.chunk_tokens,
            max_running=options.max_running,
            max_queue=options.max_queue,
            schedule=options.schedule,
            speculation=options.speculation,
        )
        self._worker_dropped = 0
        self._plan_seconds = 0.0

    def run(self) -> None:
        """Serve until Shutdown. Waits only while there is nothing to plan."""
        planned = False
        while True:
            arrived = self._inbox.drain(0 if planned else None)
            started = time.perf_counter()
            chunks: list[TokenChunk] = []
            for message in arrived:
                if isinstance(message, Shutdown):
                    return
                self._take(message, chunks)
            if chunks:
                self._to_tokenizer.send(TokenBatch(chunks))
            for order in self._scheduler.take_grammars():
                self._to_worker.send(order)
            plan = self._scheduler.plan()
            planned = plan is not None
            if plan is not None:
                self._to_worker.send(plan)
            for order in self._scheduler.take_loads():
                self._to_worker.send(order)
            self._plan_seconds += time.perf_counter() - started
            if self._audit:
                self._scheduler.audit()

    def _take(self, message: Message, chunks: list[TokenChunk]) -> None:
        match message:
            case StepResult():
                self._worker_dropped = message.dropped_frames
                chunks.extend(self._scheduler.apply(message))
            case TokenizedRequest():
                chunks.extend(self._scheduler.submit(message))
            case GrammarReady():
                chunks.extend(self._scheduler.grammar_ready(message))
            case PrefixLoaded():
                self._scheduler.prefix_loaded(message)
            case Abort():
                self._scheduler.abort(message.request_id)
            case StopMatched():
                self._scheduler.stop(message.request_id, message.index)
            case StatsCall():
                self._to_front.send(self._stats(message.call_id))
            case FlushCall():
                self._to_front.send(Flushed(message.call_id, self._scheduler.flush()))

    def _stats(self, call_id: int) -> Stats:
        cache, counters = self._cache, self._scheduler.counters
        return Stats(
            call_id=call_id,
            total=cache.total,
            free=cache.free,
            private=cache.private,
            pinned=cache.pinned,
            evictable=cache.evictable,
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            finished=counters.finished,
            aborted=counters.aborted,
            retracted=counters.retracted,
            speculated_tokens=counters.speculated_tokens,
            accepted_tokens=counters.accepted_tokens,
            forced_tokens=counters.forced_tokens,
            evicted_tokens=cache.evicted_tokens,
            dropped_frames=self._inbox.dropped,
            worker_dropped_frames=self._worker_dropped,
            step_seconds=counters.step_seconds,
            plan_seconds=self._plan_seconds,
        )
