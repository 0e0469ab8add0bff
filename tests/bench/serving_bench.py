"""Starts real servers and measures them: `python tests/bench/serving_bench.py sharing` or `... startup`.

sharing: the few-shot workload on a server and on the same server with `--no-prefix-cache`, turn by turn, and how many
prompt tokens were computed beside the distinct ones. startup: from `sapwood serve` to the first answered request.
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


def computed_tokens(url: str) -> float:
    """How many tokens the server has computed since its start."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.search(r'^sapwood_tokens_total{kind="computed"} (\S+)$', answer.read().decode(), re.MULTILINE)
    assert found, "/metrics does not count computed tokens"
    return float(found[1])


def sharing(scale: float) -> None:
    """W4 on both servers; then the computed share of the distinct prompt tokens on a fresh one."""
    with served() as (shared, _), served("--no-prefix-cache") as (plain, _):
        command = [*SAPWOOD, "bench", shared, "--peer", plain, "--only", "W4", "--scale", str(scale)]
        subprocess.run(command, check=True)
    with served() as (url, _):
        prefix = [1000 + i for i in range(1000)]
        prompts = [prefix + [5000 + 24 * i + j for j in range(24)] for i in range(64)]
        before = computed_tokens(url)
        post(f"{url}/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0})
        computed = computed_tokens(url) - before
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


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sharing", "startup"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the sharing workload (default: 1.0)")
    parser.add_argument("--times", type=int, default=5, help="starts to measure (default: 5)")
    arguments = parser.parse_args()
    sharing(arguments.scale) if arguments.what == "sharing" else startup(arguments.times)


if __name__ == "__main__":
    main()
