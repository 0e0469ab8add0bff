"""The worker process: executes step plans strictly in order, and answers each. It must never decide anything.

The heavy imports happen after the process has said hello, side by side with the start of the others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .child import Child, run_child
from .grammar_loader import GrammarLoader
from .logs import start_logging
from .messages import (
    ConfigureWorker,
    Guided,
    ModelInfo,
    PrepareGrammar,
    SampledLogprob,
    Scored,
    Shutdown,
    StepPlan,
    StepResult,
    TopLogprobs,
    ToWorker,
    pack_ids,
)
from .wire import Inbox, Outbox

if TYPE_CHECKING:
    from ..runtime.executor import Executor
    from ..runtime.sampler import TopTokens
    from ..runtime.step import GuidedRun


def serve(child: Child) -> None:
    """Load the model as configured, then execute plans until Shutdown."""
    inbox: Inbox[ToWorker] = Inbox(child.link, "worker", ToWorker)
    child.hello()
    started = time.perf_counter()
    from ..runtime import executor as runtime

    imported = time.perf_counter()
    config = child.configuration(inbox, ConfigureWorker)
    start_logging(child.role, config.log_level)
    configured = time.perf_counter()
    executor = runtime.load_executor(
        config.model_path,
        max_running=config.max_running,
        max_context=config.max_context,
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        attention_backend=config.attention_backend,
        quantize=config.quantize,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        kv_memory_fraction=config.kv_memory_fraction,
    )
    if executor.note:
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
    scheduler = Outbox(child.link, "scheduler")
    grammars = GrammarLoader(
        config.model_path,
        jump_forward=config.jump_forward,
        answers=lambda: Outbox(child.link, "scheduler"),
    )
    while not isinstance(message := inbox.receive(), Shutdown):
        if isinstance(message, StepPlan):
            scheduler.send(execute(executor, message, grammars, inbox.dropped))
        elif isinstance(message, PrepareGrammar):
            grammars.prepare(message.grammar)


def execute(executor: Executor, plan: StepPlan, grammars: GrammarLoader, dropped_frames: int) -> StepResult:
    """The answer to one plan."""
    started = time.perf_counter()
    guides = {row.row: grammars.start(row) for row in plan.opened if row.grammar is not None}
    output = executor.step(plan, guides)
    return StepResult(
        step=plan.step,
        counts=pack_ids(output.counts),
        token_ids=pack_ids(output.token_ids),
        logprobs=[SampledLogprob(each.row, each.logprob, _top(each.top)) for each in output.logprobs],
        scored=[Scored(run.entry, run.start, run.logprobs, list(map(_top, run.top))) for run in output.scored],
        guided=list(map(_guided, output.guided)),
        seconds=time.perf_counter() - started,
        dropped_frames=dropped_frames,
    )


def _guided(run: GuidedRun) -> Guided:
    return Guided(run.entry, run.rewind, run.forced, run.held, run.complete, run.failure)


def _top(top: TopTokens) -> TopLogprobs:
    return TopLogprobs(top.ids, top.logprobs)


def _describe(executor: Executor) -> ModelInfo:
    import torch

    runner = executor.runner
    return ModelInfo(
        architecture=runner.config.architecture,
        parameters=runner.parameters,
        weight_bytes=runner.weight_bytes,
        vocab_size=runner.config.vocab_size,
        model_context=runner.config.max_context,
        total_slots=runner.pool.slots,
        kv_bytes=runner.pool.nbytes,
        attention_backend=runner.backend,
        dtype=runner.dtype,
        kv_dtype=str(runner.pool.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    run_child("worker", serve)
