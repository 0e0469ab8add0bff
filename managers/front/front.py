"""The one door to an engine: starts its processes, sends requests in, and hands every answer to whoever asked for it.

All of it lives in one asyncio event loop. It must never touch tokens or tensors, and never keep an answer for nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.devices import require_gpu
from ...runtime.errors import ModelError
from ...runtime.records import Message
from ...runtime.weights import hub
from ..wire.answers import Finish, Rejected, TextChunk
from ..wire.errors import ConfigError, EngineDead, InvalidRequest, Overloaded, RequestAborted, RequestFailed
from ..wire.inboxes import ToFront
from ..wire.lifecycle import (
    ConfigureScheduler,
    ConfigureTokenizer,
    ConfigureWorker,
    Hello,
    Limits,
    ModelInfo,
    Ready,
    Shutdown,
    StartFailed,
)
from ..wire.options import EngineConfig
from ..wire.questions import FlushCall, Flushed, RenderCall, Rendered, Stats, StatsCall
from ..wire.requests import Abort, Chat, Submit
from ..wire.sockets import AsyncInbox, Link, Outbox
from .side_thread import in_thread
from .streams import OpenRequest, RequestStream
from .supervisor import CHILDREN, Supervisor

POLL_SECONDS = 0.15  # how often the children are looked at
ANSWER_SECONDS = 2.0  # how long the scheduler has to answer a question
RENDER_SECONDS = 30.0  # the tokenizer, which may be busy with long prompts
LAST_WORDS_SECONDS = 0.3  # how long a dead child's StartFailed may still be on its way


@dataclass(frozen=True)
class FrontInfo:
    """What the front knows once everything is ready.

    name: the model as the configuration names it. path: where it was found. max_context: most tokens of a prompt and
    its completion together. timings: what the start was spent on, in seconds; "total" is the whole of it, "worker up"
    the time until that process could be configured, "worker load" a part of what it did then.
    """

    name: str
    path: Path
    model: ModelInfo
    max_context: int
    timings: dict[str, float]


class Front:
    """One engine: `start` it, `stream` requests, `stop` it. Not restartable; everything in one event loop."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts nothing yet."""
        self.config = config
        self._info: FrontInfo | None = None
        self._link: Link | None = None
        self._supervisor: Supervisor | None = None
        self._inbox: AsyncInbox[Message] | None = None
        self._outboxes: dict[str, Outbox] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._serial = itertools.count()
        self._open: dict[str, OpenRequest] = {}  # by wire id
        self._by_request_id: dict[str, OpenRequest] = {}
        self._open_samples = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._hellos: dict[str, asyncio.Event] = {role: asyncio.Event() for role in CHILDREN}
        self._readies: dict[str, asyncio.Future[Ready]] = {}
        self._failure: asyncio.Future[Any] | None = None  # of the start
        self._timings: dict[str, float] = {}
        self._began = 0.0
        self._reason = ""  # why nothing can be served; "" while it can
        self._death = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> FrontInfo:
        """Known once `start` has returned."""
        if self._info is None:
            raise EngineDead("The engine has not started.")
        return self._info

    @property
    def alive(self) -> bool:
        """Whether requests can be served now."""
        return self._info is not None and not self._reason

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children by role."""
        return self._supervisor.pids if self._supervisor is not None else {}

    @property
    def open_samples(self) -> int:
        """Sequences that were submitted and have not ended."""
        return self._open_samples

    @property
    def dropped_frames(self) -> int:
        """Frames that reached this process's socket and were not a message."""
        return self._inbox.dropped if self._inbox is not None else 0

    async def start(self) -> None:
        """Find the model and start the children; returns when all are ready.

        Raises ModelError, ConfigError or EngineDead with the sentence that says why it cannot; nothing is left then.
        """
        if self._link is not None:
            raise EngineDead("An engine cannot be started twice.")
        self._began = time.perf_counter()
        if self.config.device == "cuda":
            require_gpu()  # before anything is fetched or started
        try:
            self._link = Link.create(self.config.tp)
            self._inbox = AsyncInbox(self._link, "front", ToFront)
            self._supervisor = Supervisor(self._link, threads=self.config.threads)
            self._failure = asyncio.get_running_loop().create_future()
            self._readies = {role: asyncio.get_running_loop().create_future() for role in CHILDREN}
            self._supervisor.start()
            self._tasks = [asyncio.create_task(self._receive(self._inbox)), asyncio.create_task(self._watch())]
            await self._configure()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End everything, within 5 seconds; open requests end with RequestAborted. May be called more than once."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def wait_dead(self) -> str:
        """Wait until a child process dies by itself; returns the sentence that says so."""
        await self._death.wait()
        return self._reason

    async def _configure(self) -> None:
        """The order of a start: the worker's slow imports run while the model is looked for."""
        config = self.config
        path = await in_thread(lambda: hub.resolve(config.model, progress=True))
        self._timings["resolve"] = time.perf_counter() - self._began
        if config.tp > 1:  # too many ranks are refused before one of them loads anything
            await in_thread(lambda: _check_ranks(path, config.tp))
        text, ready, _ = await self._unless_failed(
            self._configure_child("tokenizer", ConfigureTokenizer(str(path), config)),
            self._configure_child("worker", ConfigureWorker(str(path), config)),
            self._hellos["scheduler"].wait(),
        )
        model = ready.model
        if model is None:
            raise EngineDead("The worker did not describe its model.")
        if text.vocab_size > model.vocab_size:
            raise ModelError(
                f"The tokenizer has {text.vocab_size} token ids, the model embeddings for {model.vocab_size}: "
                f"the two do not belong together."
            )
        max_context = self._max_context(model)
        self._send("tokenizer", Limits(max_context))
        configure = ConfigureScheduler(model.total_slots, max_context, config)
        await self._unless_failed(self._configure_child("scheduler", configure))
        self._timings["total"] = time.perf_counter() - self._began
        self._info = FrontInfo(config.model, path, model, max_context, self._timings)

    async def _configure_child(self, role: str, message: Message) -> Ready:
        await self._hellos[role].wait()
        self._send(role, message)
        ready = await self._readies[role]
        self._timings.update({f"{role} {name}": seconds for name, seconds in ready.timings.items()})
        return ready

    async def _unless_failed(self, *steps: Any) -> list[Any]:
        """The results of all steps; raises as soon as one of them, or any child, fails."""
        assert self._failure is not None
        work = asyncio.ensure_future(asyncio.gather(*steps))
        try:
            await asyncio.wait([work, self._failure], return_when=asyncio.FIRST_COMPLETED)
            return self._failure.result() if self._failure.done() else await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def _max_context(self, model: ModelInfo) -> int:
        wanted = self.config.max_context
        if wanted > model.model_context:
            raise ConfigError(
                f"max_context {wanted} is above the {model.model_context} tokens that the model supports."
            )
        return min(wanted or model.model_context, model.total_slots)

    async def _stop(self) -> None:
        if not self._reason:
            self._end("The engine was shut down.", RequestAborted)
        for task in self._tasks:
            task.cancel()
        for outbox in self._outboxes.values():
            outbox.send(Shutdown())
        if self._supervisor is not None:
            everyone_listens = len(self._outboxes) == len(CHILDREN)
            await self._supervisor.stop(grace=2.0 if everyone_listens else 0.0)
        for outbox in self._outboxes.values():
            outbox.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._link is not None:
            self._link.remove()

    async def _watch(self) -> None:
        """Notice a dead child."""
        supervisor = self._supervisor
        assert supervisor is not None
        while (sentence := supervisor.dead()) is None:  # noqa: ASYNC110 (a process's end is no event)
            await asyncio.sleep(POLL_SECONDS)
        if self._info is None:
            await asyncio.sleep(LAST_WORDS_SECONDS)
            self._fail_start(EngineDead(sentence))
        self._end(sentence, EngineDead)
        self._death.set()

    def _end(self, reason: str, error: type[Exception]) -> None:
        """From now on nothing can be served; whoever waits is told."""
        self._reason = reason
        for request in list(self._open.values()):
            self._release(request)
            request.fail(error(reason))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error(reason))
        self._calls.clear()

    # --- requests --------------------------------------------------------------------------------------------------

    def stream(self, submit: Submit) -> RequestStream:
        """Send a request in. Raises EngineDead, Overloaded, or InvalidRequest where its id is taken."""
        self._check_alive()
        samples, field = (submit.n, "n") if submit.score is None else (len(submit.score), "continuations")
        capacity = self.config.capacity
        if samples > capacity:
            raise InvalidRequest(f"{field} asks for {samples} sequences; {capacity} can be open at once.", field)
        if submit.request_id in self._by_request_id:
            text = f"A request with the id {submit.request_id!r} is open; request_id must be unique."
            raise InvalidRequest(text, "request_id")
        if self._open_samples + samples > capacity:
            raise Overloaded(f"{self._open_samples} of {capacity} possible sequences are open; try again later.")
        wire_id = f"{submit.request_id}#{next(self._serial)}"  # an id used again must not get its old request's chunks
        self._send("tokenizer", msgspec.structs.replace(submit, request_id=wire_id))
        request = OpenRequest(submit.request_id, wire_id, samples)
        self._open[wire_id] = request
        self._by_request_id[submit.request_id] = request
        self._open_samples += samples
        return RequestStream(request, self._drop, asyncio.get_running_loop())

    def abort(self, request_id: str) -> bool:
        """End a request, by the id of its Submit, with RequestAborted; False where no such request is open."""
        request = self._by_request_id.get(request_id)
        if request is None:
            return False
        self._drop(request)
        request.fail(RequestAborted(f"The request {request_id!r} was aborted."))
        return True

    async def stats(self) -> Stats:
        """The scheduler's books and counters, now. Raises EngineDead, or RequestFailed where no answer comes."""
        return await self._call(StatsCall)

    async def flush_cache(self) -> int:
        """Empty the prefix cache; how many slots that freed. Raises as `stats` does."""
        flushed: Flushed = await self._call(FlushCall)
        return flushed.freed

    async def render(self, chat: Chat) -> Rendered:
        """What the chat template makes of a conversation. Raises InvalidRequest where it refuses, and as `stats`."""
        rendered: Rendered = await self._call(lambda call_id: RenderCall(call_id, chat), "tokenizer", RENDER_SECONDS)
        if rendered.error:
            raise InvalidRequest(rendered.error, "messages")
        return rendered

    async def _call(
        self, kind: Callable[[int], Message], role: str = "scheduler", seconds: float = ANSWER_SECONDS
    ) -> Any:
        self._check_alive()
        call_id = next(self._serial)
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._send(role, kind(call_id))
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise RequestFailed(f"The {role} did not answer within {seconds:g} seconds.") from None
        finally:
            self._calls.pop(call_id, None)

    def _check_alive(self) -> None:
        if not self.alive:
            raise EngineDead(self._reason or "The engine has not started.")

    def _send(self, role: str, message: Message) -> None:
        self._outboxes[role].send(message)

    def _drop(self, request: OpenRequest) -> None:
        if request.wire_id in self._open:
            self._release(request)
            self._send("tokenizer", Abort(request.wire_id))

    def _release(self, request: OpenRequest) -> None:
        del self._open[request.wire_id]
        del self._by_request_id[request.request_id]
        self._open_samples -= request.left

    # --- what arrives ----------------------------------------------------------------------------------------------

    async def _receive(self, inbox: AsyncInbox[Message]) -> None:
        for count in itertools.count():
            self._take(await inbox.receive())
            if count % 16 == 0:
                await asyncio.sleep(0)  # an inbox that is never empty would starve the readers

    def _take(self, message: Message) -> None:
        match message:
            case TextChunk():
                self._take_chunk(message)
            case Rejected():
                self._take_rejection(message)
            case Stats() | Flushed() | Rendered():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():
                    call.set_result(message)
            case Hello():
                self._take_hello(message.role)
            case Ready():
                ready = self._readies.get(message.role)
                if ready is not None and not ready.done():
                    ready.set_result(message)
            case StartFailed():
                self._fail_start(ModelError(message.message))

    def _fail_start(self, error: Exception) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # counts as retrieved, should the start itself have failed otherwise

    def _take_hello(self, role: str) -> None:
        if role in self._hellos and role not in self._outboxes and self._link is not None:
            self._timings[f"{role} up"] = time.perf_counter() - self._began
            self._outboxes[role] = Outbox(self._link, role)
            self._hellos[role].set()

    def _take_chunk(self, chunk: TextChunk) -> None:
        request = self._open.get(chunk.request_id)
        if request is None:
            return
        finish = chunk.finish
        if finish is not None and finish.reason in ("error", "abort"):
            self._drop(request)
            request.fail(_error_for(finish))
            return
        request.arrived.put_nowait(msgspec.structs.replace(chunk, request_id=request.request_id))
        if finish is not None:
            if request.left == 1:
                self._release(request)
                request.arrived.put_nowait(None)
            else:
                self._open_samples -= 1
            request.left -= 1

    def _take_rejection(self, message: Rejected) -> None:
        request = self._open.get(message.request_id)
        if request is not None:
            self._release(request)
            invalid = message.kind == "invalid"
            request.fail(InvalidRequest(message.message, message.field) if invalid else RequestFailed(message.message))


def _check_ranks(path: Path, ranks: int) -> None:
    from ...runtime.model.read_config import read_config
    from ...runtime.model.shard import Shard

    Shard.of(read_config(path), 0, ranks)


def _error_for(finish: Finish) -> Exception:
    if finish.reason == "abort":
        return RequestAborted(finish.message or "The request was aborted.")
    return _FAULTS[finish.fault](finish.message)


_FAULTS = {"server": RequestFailed, "load": Overloaded, "request": InvalidRequest}
