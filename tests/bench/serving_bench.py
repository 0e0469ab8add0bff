"""Starts real servers and measures them: `python tests/bench/serving_bench.py sharing`, `... startup`, `... overhead`.

sharing: the few-shot workload on a server and on the same server with `--no-prefix-cache`, turn by turn, and how many
prompt tokens were computed beside the distinct ones. startup: from `sapwood serve` to the first answered request.
overhead: the scheduler's own time beside the worker's, at 64 running requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

COMPUTED = 'sapwood_tokens_total{kind="computed"}'
SAPWOOD = [sys.executable, "-m", "sapwood"]


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, str]]:
    """A ready server on a free port: its address, and what it printed until then."""
    command = [*SAPWOOD, "serve", "--port", "0", "--log-level", "warning", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _until_ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def _until_ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        found = re.match(r"Sapwood .* at (http://\S+)", line)
        if found:
            for line in process.stdout:
                said += line
                if "ready in" in line:
                    return found[1], said
    raise SystemExit(f"the server ended before it was ready: {said}")


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def metric(url: str, name: str) -> float:
    """The value of one line of /metrics, by its name and labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, f"/metrics has no {name}"
    return float(found[1])


def sharing(scale: float) -> None:
    """W4 on both servers; then the computed share of the distinct prompt tokens on a fresh one."""
    with served() as (shared, _), served("--no-prefix-cache") as (plain, _):
        command = [*SAPWOOD, "bench", shared, "--peer", plain, "--only", "W4", "--scale", str(scale)]
        subprocess.run(command, check=True)
    with served() as (url, _):
        prefix = [1000 + i for i in range(1000)]
        prompts = [prefix + [5000 + 24 * i + j for j in range(24)] for i in range(64)]
        before = metric(url, COMPUTED)
        post(f"{url}/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0})
        computed = metric(url, COMPUTED) - before
        distinct = len(prefix) + sum(len(prompt) - len(prefix) for prompt in prompts)
        print(f"prompt tokens computed: {computed:.0f}; distinct: {distinct}; ratio {computed / distinct:.3f}")


def startup(times: int) -> None:
    """Seconds from the command to the first answer, the median of several starts, and what the last was spent on."""
    seconds: list[float] = []
    spent = ""
    for _ in range(times):
        began = time.perf_counter()
        with served() as (url, said):
            spent = said
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
            post(f"{url}/v1/chat/completions", body)
            seconds.append(time.perf_counter() - began)
    floor = min(_timed([sys.executable, "-c", "import torch"]) for _ in range(3))
    middle = statistics.median(seconds)
    print(f"first answer after {middle:.2f} s (median of {times}; all: {', '.join(f'{s:.2f}' for s in seconds)})")
    print(f"`import torch` alone: {floor:.2f} s (ratio {middle / floor:.1f})")
    print(next(line for line in spent.splitlines() if "ready in" in line).strip())


def overhead() -> None:
    """64 completions of 64 tokens at once; planning happens while the worker computes, so it costs the less of both."""
    with served() as (url, _):
        prompts = [[1000 + 100 * i + j for j in range(32)] for i in range(64)]
        post(f"{url}/v1/completions", {"prompt": prompts, "max_tokens": 64, "ignore_eos": True, "temperature": 0})
        planning, steps = metric(url, "sapwood_plan_seconds_total"), metric(url, "sapwood_step_seconds_total")
        count = metric(url, "sapwood_steps_total")
        plan_ms, work_ms = planning / count * 1e3, steps / count * 1e3
        print(f"{count:.0f} steps, each {plan_ms:.2f} ms of planning beside {work_ms:.1f} ms of work")
        print(f"ratio {planning / steps:.4f}")


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sharing", "startup", "overhead"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the sharing workload (default: 1.0)")
    parser.add_argument("--times", type=int, default=5, help="starts to measure (default: 5)")
    arguments = parser.parse_args()
    if arguments.what == "sharing":
        sharing(arguments.scale)
    elif arguments.what == "startup":
        startup(arguments.times)
    else:
        overhead()


if __name__ == "__main__":
    main()
