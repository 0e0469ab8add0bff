"""What the scheduler itself costs at 64 running requests: `python tests/bench/scheduler_bench.py`.

The floor is the least that any scheduler must do: encode and decode the step's messages.
"""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np

from sapwood.managers.scheduler.scheduler import Scheduler
from sapwood.managers.wire.answers import TokenBatch
from sapwood.managers.wire.requests import TokenizedRequest
from sapwood.radix.prefix_cache import PrefixCache
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import EntryResult, StepPlan, StepResult

RUNNING = 64
PROMPT = 1000
STEPS = 400


def decode_steps(running: int = RUNNING, steps: int = STEPS) -> dict[str, float]:
    """Median microseconds that one decode step of `running` requests costs: in the scheduler, and in messages alone."""
    scheduler = Scheduler(
        PrefixCache(200_000), max_context=8192, chunk_tokens=running * PROMPT, max_running=running, max_queue=running
    )
    rng = np.random.default_rng(0)
    for number in range(running):
        prompt = pack_ids(rng.integers(0, 49_152, PROMPT))
        sampling = Sampling(max_tokens=steps + 10, seed=0)
        scheduler.submit(TokenizedRequest(f"request-{number}", 0, prompt, sampling, [2], "", 0))
    own: list[float] = []
    wire: list[float] = []
    encoder = msgspec.msgpack.Encoder()
    plans, results = msgspec.msgpack.Decoder(StepPlan), msgspec.msgpack.Decoder(StepResult)
    in_flight: list[StepPlan] = []
    for _ in range(steps):
        started = time.perf_counter()
        while (plan := scheduler.plan()) is not None:
            in_flight.append(plan)
        planned = time.perf_counter() - started
        plan = in_flight.pop(0)
        rows = len(plan.rows) // 4
        result = StepResult(plan.step, [EntryResult([token]) for token in rng.integers(10, 49_152, rows).tolist()])
        started = time.perf_counter()
        chunks = scheduler.apply(result)
        own.append(planned + time.perf_counter() - started)
        started = time.perf_counter()
        plans.decode(encoder.encode(plan))
        results.decode(encoder.encode(result))
        encoder.encode(TokenBatch(chunks))
        wire.append(time.perf_counter() - started)
    return {"own_us": statistics.median(own[8:]) * 1e6, "wire_us": statistics.median(wire[8:]) * 1e6}


def main() -> None:
    figures = decode_steps()
    own, wire = figures["own_us"], figures["wire_us"]
    print(f"{RUNNING} running: {own:.0f} µs a step; its messages alone {wire:.0f} µs (ratio {own / wire:.1f})")
    for step_ms in (10, 50, 100, 200):
        print(f"  beside a worker step of {step_ms:>3} ms: {(own + wire) / step_ms / 10:.2f} %")


if __name__ == "__main__":
    main()
