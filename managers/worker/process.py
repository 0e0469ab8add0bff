"""The worker process: executes step plans strictly in order, and answers each. It must never decide anything.

Where a model is divided over ranks, each is such a process. Only the first is known to the scheduler: it passes every
plan on to the others, who execute it too, and answers alone.

The heavy imports happen after the process has said hello, side by side with the start of the others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...runtime.records import Message
from ...runtime.step import StepPlan
from ..wire.child import Child
from ..wire.grammars import ForgetGrammar, PrepareGrammar
from ..wire.inboxes import ToWorker
from ..wire.lifecycle import ConfigureWorker, ModelInfo, Shutdown
from ..wire.logs import start_logging
from ..wire.prefixes import LoadPrefix, PrefixLoaded
from ..wire.sockets import Inbox, Outbox
from .grammar_loader import GrammarLoader
from .steps import Steps

if TYPE_CHECKING:
    from ...runtime.execution.executor import Executor
    from ...runtime.execution.ranks import Ranks

WARM_AFTER = 3.0  # seconds with nothing to do, after which what the first grammar needs is loaded
GLANCE = 0.001  # seconds between looks at a step that the device computes, while no plan comes


class Followers:
    """The workers of the other ranks, as the first one sees them. Elsewhere, and where a model is not divided, none."""

    def __init__(self, child: Child) -> None:
        roles = child.link.workers
        self._outboxes = [Outbox(child.link, role) for role in roles[1:]] if child.role == roles[0] else []

    def tell(self, message: Message) -> None:
        """Send it to each of them. Grammars are not theirs: the first rank alone chooses tokens."""
        for outbox in self._outboxes:
            outbox.send(message)


def serve(child: Child) -> None:
    """Load the model as configured, then execute plans until Shutdown."""
    followers = Followers(child)
    try:
        _serve(child, followers)
    finally:
        followers.tell(Shutdown())


def _serve(child: Child, followers: Followers) -> None:
    inbox: Inbox[ToWorker] = Inbox(child.link, child.role, ToWorker)
    child.hello()
    started = time.perf_counter()
    from ...runtime.execution.loading import load_executor

    imported = time.perf_counter()
    configure = child.configuration(inbox, ConfigureWorker)
    options = configure.options
    start_logging(child.role, options.log_level)
    configured = time.perf_counter()
    ranks = _join(child, configure, followers)
    executor = load_executor(
        configure.model_path, options, vocab_size=configure.vocab_size, progress=child.log.info, ranks=ranks
    )
    if executor.note and ranks.leads:
        child.log.warning("torch computes attention, not the best backend: %s", executor.note)
    info = _describe(executor)
    child.log.debug(
        "loaded %s: %.1fM parameters, %s, %.2f GiB, %d threads",
        *(info.architecture, info.parameters / 1e6, info.dtype, info.weight_bytes / 2**30, info.threads),
    )
    child.log.debug(
        "KV pool of %d tokens, %s, up to %.2f GiB; attention: %s",
        *(info.total_slots, info.kv_dtype, info.kv_bytes / 2**30, info.attention_backend),
    )
    child.ready({"import": imported - started, "load": time.perf_counter() - configured}, info)
    if not ranks.leads:
        _follow(inbox, executor)
        return
    scheduler = Outbox(child.link, "scheduler")
    grammars = GrammarLoader(
        configure.model_path,
        jump_forward=options.jump_forward,
        answers=lambda: Outbox(child.link, "scheduler"),
    )
    steps = Steps(executor, grammars, scheduler.send, lambda: inbox.dropped)
    patience: float | None = WARM_AFTER
    while not isinstance(message := inbox.receive(GLANCE if steps.is_waiting else patience), Shutdown):
        if isinstance(message, StepPlan):
            followers.tell(message)
            steps.run(message)
        elif isinstance(message, PrepareGrammar):
            grammars.prepare(message.grammar)
        elif isinstance(message, ForgetGrammar):
            grammars.forget(message.key)
        elif isinstance(message, LoadPrefix):
            scheduler.send(PrefixLoaded(message.key))  # the only tier there is lies in memory
        elif steps.is_waiting:
            steps.settle(only_if_over=True)
        else:
            grammars.warm()
            patience = None


def _join(child: Child, configure: ConfigureWorker, followers: Followers) -> Ranks:
    """The model's ranks, once all of them are there."""
    from ...runtime.execution.ranks import ALONE, join_ranks
    from ...runtime.execution.runner_loading import device_of

    roles = child.link.workers
    if len(roles) == 1:
        return ALONE
    rank = roles.index(child.role)
    device = device_of(configure.options, rank, len(roles))
    followers.tell(configure)
    return join_ranks(rank, len(roles), child.link.rendezvous, device)


def _follow(inbox: Inbox[ToWorker], executor: Executor) -> None:
    """Execute what the first rank does, until Shutdown; it has the answers."""
    while not isinstance(message := inbox.receive(), Shutdown):
        if isinstance(message, StepPlan):
            executor.launch(message)


def _describe(executor: Executor) -> ModelInfo:
    import torch

    runner, ranks = executor.runner, executor.ranks
    return ModelInfo(
        architecture=runner.config.architecture,
        parameters=runner.parameters,
        weight_bytes=ranks.total(runner.weight_bytes),
        vocab_size=executor.vocab_size,
        model_context=runner.config.max_context,
        total_slots=runner.pool.slots,
        kv_bytes=ranks.total(runner.pool.nbytes),
        attention_backend=runner.backend,
        dtype=runner.dtype,
        kv_dtype=str(runner.pool.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        recommended=runner.config.recommended,
    )
