"""The start of an engine: find the model, configure the children in order, and say what was found.

It must never serve a request: until it is done, there is nothing to serve with.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runtime.errors import ModelError
from ...runtime.records import Message
from ...runtime.sampling.recommendation import FALLBACK, OPENAI_DEFAULTS, SamplingDefaults
from ...runtime.weights import hub
from ..wire.errors import ConfigError, EngineDead
from ..wire.lifecycle import (
    ConfigureScheduler,
    ConfigureTokenizer,
    ConfigureWorker,
    Hello,
    Limits,
    ModelInfo,
    Ready,
    ReasoningInfo,
    StartFailed,
)
from ..wire.options import EngineConfig
from ..wire.sockets import Link, Outbox
from .side_thread import in_thread
from .supervisor import CHILDREN


@dataclass(frozen=True)
class FrontInfo:
    """What the front knows once everything is ready.

    name: the model as the configuration names it. path: where it was found. max_context: most tokens of a prompt and
    its completion together. sampling: how tokens are chosen where a request does not say. timings: what the start was
    spent on, in seconds; "total" is the whole of it, "worker up" the time until that process could be configured,
    "worker load" a part of what it did then. reasoning: what the model's chat template does about thinking.
    """

    name: str
    path: Path
    model: ModelInfo
    max_context: int
    sampling: SamplingDefaults
    timings: dict[str, float]
    reasoning: ReasoningInfo = field(default_factory=ReasoningInfo)


class Startup:
    """One start. Every Hello, Ready and StartFailed that arrives goes to `take`; `run` waits for what it needs."""

    def __init__(self, config: EngineConfig, link: Link, outboxes: dict[str, Outbox], began: float) -> None:
        """outboxes: filled, by role, as children say hello. began: when the start did (perf_counter)."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._link = link
        self._outboxes = outboxes
        self._began = began
        self._hellos = {role: asyncio.Event() for role in CHILDREN}
        self._readies: dict[str, asyncio.Future[Ready]] = {role: loop.create_future() for role in CHILDREN}
        self._failure: asyncio.Future[Any] = loop.create_future()
        self._timings: dict[str, float] = {}

    async def run(self) -> FrontInfo:
        """Configure everybody; the worker's slow imports run while the model is looked for.

        Raises ModelError, ConfigError or EngineDead with the sentence that says why it cannot.
        """
        config = self._config
        path = await in_thread(lambda: hub.resolve(config.model, progress=True))
        self._timings["resolve"] = time.perf_counter() - self._began
        if config.tp > 1:  # too many ranks are refused before one of them loads anything
            await in_thread(lambda: _check_ranks(path, config.tp))
        text, _ = await self._unless_failed(
            self._configure("tokenizer", ConfigureTokenizer(str(path), config)),
            self._hellos["worker"].wait(),  # which takes longer, as it imports torch first
        )
        ready, _ = await self._unless_failed(
            self._configure("worker", ConfigureWorker(str(path), text.vocab_size, config)),
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
        self._outboxes["tokenizer"].send(Limits(max_context))
        configure = ConfigureScheduler(model.total_slots, max_context, config)
        await self._unless_failed(self._configure("scheduler", configure))
        self._timings["total"] = time.perf_counter() - self._began
        sampling = _defaults(config, model)
        return FrontInfo(config.model, path, model, max_context, sampling, self._timings, text.reasoning)

    def take(self, message: Hello | Ready | StartFailed) -> None:
        """What a child says of itself. Once the start is over, nothing comes of it."""
        match message:
            case Hello(role=role) if role in self._hellos and role not in self._outboxes:
                self._timings[f"{role} up"] = time.perf_counter() - self._began
                self._outboxes[role] = Outbox(self._link, role)
                self._hellos[role].set()
            case Ready(role=role) if role in self._readies and not self._readies[role].done():
                self._readies[role].set_result(message)
            case StartFailed():
                self.fail(ModelError(message.message))
            case _:
                pass

    def fail(self, error: Exception) -> None:
        """Let `run` end with this error. The first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # counts as retrieved, should the start itself have failed otherwise

    async def _configure(self, role: str, message: Message) -> Ready:
        await self._hellos[role].wait()
        self._outboxes[role].send(message)
        ready = await self._readies[role]
        self._timings.update({f"{role} {name}": seconds for name, seconds in ready.timings.items()})
        return ready

    async def _unless_failed(self, *steps: Any) -> list[Any]:
        """The results of all steps; raises as soon as one of them, or any child, fails."""
        work = asyncio.ensure_future(asyncio.gather(*steps))
        try:
            await asyncio.wait([work, self._failure], return_when=asyncio.FIRST_COMPLETED)
            return self._failure.result() if self._failure.done() else await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def _max_context(self, model: ModelInfo) -> int:
        wanted = self._config.max_context
        if wanted > model.model_context:
            raise ConfigError(
                f"max_context {wanted} is above the {model.model_context} tokens that the model supports."
            )
        return min(wanted or model.model_context, model.total_slots)


def _defaults(config: EngineConfig, model: ModelInfo) -> SamplingDefaults:
    if config.sampling_defaults == "openai":
        return OPENAI_DEFAULTS
    alias = hub.ALIASES.get(config.model)
    return (alias and alias.sampling) or model.recommended or FALLBACK


def _check_ranks(path: Path, ranks: int) -> None:
    from ...runtime.model.read_config import read_config
    from ...runtime.model.shard import Shard

    Shard.of(read_config(path), 0, ranks)
