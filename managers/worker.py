"""The worker process: executes step plans strictly in order, and answers each. It must never decide anything.

The heavy imports happen after the process has said hello, side by side with the start of the others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .child import Child, run_child
from .grammar_loader import GrammarLoader
from .logs import start_logging
from .messages import ConfigureWorker, ModelInfo, PrepareGrammar, Shutdown, StepPlan, ToWorker
from .steps import Steps
from .wire import Inbox, Outbox

if TYPE_CHECKING:
    from ..runtime.executor import Executor

GLANCE = 0.001  # seconds between looks at a step that the device computes, while no plan comes


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
        deterministic=config.deterministic,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        attention_backend=config.attention_backend,
        quantize=config.quantize,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        kv_memory_fraction=config.kv_memory_fraction,
        progress=child.log.info,
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
    steps = Steps(executor, grammars, scheduler.send, lambda: inbox.dropped)
    while not isinstance(message := inbox.receive(GLANCE if steps.is_waiting else None), Shutdown):
        if isinstance(message, StepPlan):
            steps.run(message)
        elif isinstance(message, PrepareGrammar):
            grammars.prepare(message.grammar)
        else:
            steps.settle(only_if_over=True)


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
