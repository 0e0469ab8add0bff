"""What the scheduler itself costs at 64 running requests, and with 128 waiting: python tests/bench/scheduler_bench.py

The floor is the least that any scheduler must do: encode and decode the step's messages; and for those that wait, a
queue of which none can enter and which need not be looked at.
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
WAITING = 128
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


def waiting_plans(waiting: int, steps: int = 200) -> float:
    """Median microseconds of planning a step while two long prompts are computed and `waiting` more, of which a half is
    cached, are too long to enter before those are done."""
    scheduler = Scheduler(
        PrefixCache(400_000), max_context=100_000, chunk_tokens=256, max_running=RUNNING, max_queue=waiting + 2
    )
    rng = np.random.default_rng(0)

    def submit(name: str, prompt: np.ndarray) -> None:
        scheduler.submit(TokenizedRequest(name, 0, pack_ids(prompt), Sampling(max_tokens=10, seed=0), [2], "", 0))

    def step() -> float:
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter() - started
        if plan is not None:
            gained = [EntryResult([7]) if sample else EntryResult() for sample in plan.sample]
            scheduler.apply(StepResult(plan.step, gained))
        return planned

    shared = rng.integers(0, 49_152, PROMPT // 2)
    submit("warm", shared)
    while scheduler.running or scheduler.waiting:
        step()
    for number in range(2):
        submit(f"long {number}", rng.integers(0, 49_152, steps * 256))
    for _ in range(3):
        step()
    for number in range(waiting):
        submit(f"waits {number}", np.concatenate([shared, rng.integers(0, 49_152, PROMPT // 2)]))
    return statistics.median([step() for _ in range(steps)][8:]) * 1e6


def main() -> None:
    figures = decode_steps()
    own, wire = figures["own_us"], figures["wire_us"]
    print(f"{RUNNING} running: {own:.0f} µs a step; its messages alone {wire:.0f} µs (ratio {own / wire:.1f})")
    for step_ms in (10, 50, 100, 200):
        print(f"  beside a worker step of {step_ms:>3} ms: {(own + wire) / step_ms / 10:.2f} %")
    alone, crowd = waiting_plans(0), waiting_plans(WAITING)
    print(f"{WAITING} waiting: {crowd:.0f} µs to plan a step; with none {alone:.0f} µs (ratio {crowd / alone:.1f})")


if __name__ == "__main__":
    main()
