"""The one door to an engine: starts its processes, sends requests in, and hands every answer to whoever asked for it.

All of it lives in one asyncio event loop. It must never touch tokens or tensors. How a start goes is in `startup`, what
becomes of requests in `open_requests`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...runtime.devices import require_gpu
from ...runtime.records import Message
from ..wire.answers import MovedLine, Rejected, TextChunk
from ..wire.errors import EngineDead, InvalidRequest, RequestAborted
from ..wire.inboxes import ToFront
from ..wire.lifecycle import Hello, Ready, Shutdown, StartFailed
from ..wire.options import EngineConfig
from ..wire.questions import (
    DetokenizeCall,
    FlushCall,
    Flushed,
    RenderCall,
    Rendered,
    Stats,
    StatsCall,
    TokenizeCall,
    Tokenized,
    TokenizerCall,
    TokenizerInfo,
)
from ..wire.requests import Chat, Submit
from ..wire.sockets import AsyncInbox, Link, Outbox
from .calls import Calls
from .open_requests import OpenRequests
from .requests.stable_prefix import StablePrefix
from .startup import FrontInfo, Startup
from .streams import RequestStream
from .supervisor import CHILDREN, Supervisor

POLL_SECONDS = 0.15  # how often the children are looked at
ANSWER_SECONDS = 2.0  # how long the scheduler has to answer a question
RENDER_SECONDS = 30.0  # the tokenizer, which may be busy with long prompts
LAST_WORDS_SECONDS = 0.3  # how long a dead child's StartFailed may still be on its way


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
        self._stable_prefix = StablePrefix(config.stable_prefix, config.stable_prefix_pattern)
        self._requests = OpenRequests(config.capacity, lambda message: self._outboxes["tokenizer"].send(message))
        self._calls = Calls()
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
    def dropped_frames(self) -> int:
        """Frames that reached this process's socket and were not a message."""
        return self._inbox.dropped if self._inbox is not None else 0

    async def start(self) -> None:
        """Find the model and start the children; returns when all are ready.

        Raises ModelError, ConfigError or EngineDead with the sentence that says why it cannot; nothing is left then.
        """
        if self._link is not None:
            raise EngineDead("An engine cannot be started twice.")
        began = time.perf_counter()
        if self.config.device == "cuda":
            require_gpu()  # before anything is fetched or started
        try:
            self._link = Link.create(self.config.tp)
            self._inbox = AsyncInbox(self._link, "front", ToFront)
            self._supervisor = Supervisor(self._link, threads=self.config.threads)
            self._supervisor.start()
            startup = Startup(self.config, self._link, self._outboxes, began)
            self._tasks = [
                asyncio.create_task(self._receive(self._inbox, startup)),
                asyncio.create_task(self._watch(self._supervisor, startup)),
            ]
            self._info = await startup.run()
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

    async def _watch(self, supervisor: Supervisor, startup: Startup) -> None:
        """Notice a dead child."""
        while (sentence := supervisor.dead()) is None:  # noqa: ASYNC110 (a process's end is no event)
            await asyncio.sleep(POLL_SECONDS)
        if self._info is None:
            await asyncio.sleep(LAST_WORDS_SECONDS)
            startup.fail(EngineDead(sentence))
        self._end(sentence, EngineDead)
        self._death.set()

    def _end(self, reason: str, error: type[Exception]) -> None:
        """From now on nothing can be served; whoever waits is told."""
        self._reason = reason
        self._requests.fail_all(lambda: error(reason))
        self._calls.fail_all(lambda: error(reason))

    async def _receive(self, inbox: AsyncInbox[Message], startup: Startup) -> None:
        for count in itertools.count():
            match message := await inbox.receive():
                case TextChunk():
                    self._requests.take_chunk(message)
                case Rejected():
                    self._requests.take_rejection(message)
                case Stats() | Flushed() | Rendered() | Tokenized() | TokenizerInfo():
                    self._calls.take(message)
                case Hello() | Ready() | StartFailed():
                    startup.take(message)
            if count % 16 == 0:
                await asyncio.sleep(0)  # an inbox that is never empty would starve the readers

    # --- requests --------------------------------------------------------------------------------------------------

    def stream(self, submit: Submit) -> RequestStream:
        """Send a request in. Raises EngineDead, Overloaded, or InvalidRequest where its id is taken."""
        self._check_alive()
        moved: list[MovedLine] = []
        if submit.chat is not None:
            chat, moved = self._stable_prefix.applied(submit.chat)
            submit = msgspec.structs.replace(submit, chat=chat)
        return self._requests.stream(submit, moved)

    def abort(self, request_id: str) -> bool:
        """End a request, by the id of its Submit, with RequestAborted; False where no such request is open."""
        return self._requests.abort(request_id)

    async def stats(self) -> Stats:
        """The scheduler's books and counters, now. Raises EngineDead, or RequestFailed where no answer comes."""
        return await self._call(StatsCall)

    async def flush_cache(self) -> int:
        """Empty the prefix cache; how many slots that freed. Raises as `stats` does."""
        flushed: Flushed = await self._call(FlushCall)
        return flushed.freed

    async def render(self, chat: Chat) -> Rendered:
        """What the chat template makes of a conversation. Raises InvalidRequest where it refuses, and as `stats`."""
        chat, moved = self._stable_prefix.applied(chat)
        rendered: Rendered = await self._call(lambda call_id: RenderCall(call_id, chat), "tokenizer", RENDER_SECONDS)
        if rendered.error:
            raise InvalidRequest(rendered.error, tuple(rendered.path) or "messages")
        return msgspec.structs.replace(rendered, moved=moved)

    async def tokenize(self, submit: Submit) -> Tokenized:
        """The tokens of a request's prompt, whatever its length. Raises as `render` does."""
        if submit.chat is not None:
            submit = msgspec.structs.replace(submit, chat=self._stable_prefix.applied(submit.chat)[0])
        return await self._tokens(lambda call_id: TokenizeCall(call_id, submit))

    async def detokenize(self, token_ids: list[int]) -> Tokenized:
        """What these tokens say. Raises as `stats` does."""
        return await self._tokens(lambda call_id: DetokenizeCall(call_id, token_ids))

    async def tokenizer_info(self) -> TokenizerInfo:
        """What kind of tokenizer it is. Raises as `stats` does."""
        return await self._call(TokenizerCall, "tokenizer", RENDER_SECONDS)

    async def _tokens(self, kind: Callable[[int], Message]) -> Tokenized:
        tokenized: Tokenized = await self._call(kind, "tokenizer", RENDER_SECONDS)
        if tokenized.error:
            raise InvalidRequest(tokenized.error, tuple(tokenized.path) or None)
        return tokenized

    async def _call(
        self, kind: Callable[[int], Message], role: str = "scheduler", seconds: float = ANSWER_SECONDS
    ) -> Any:
        self._check_alive()
        return await self._calls.ask(role, lambda call_id: self._outboxes[role].send(kind(call_id)), seconds)

    def _check_alive(self) -> None:
        if not self.alive:
            raise EngineDead(self._reason or "The engine has not started.")
