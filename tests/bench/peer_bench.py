"""Sapwood beside another server, by turns and each time anew, and the table of the ratios.

    python tests/bench/peer_bench.py --peer http://127.0.0.1:8080 [--rounds 3]
    python tests/bench/peer_bench.py --llama-server build/bin/llama-server [--driver load.py]

--peer: a server that is running already, and keeps what it has cached from one round to the next.
--llama-server: its program; it is started anew for each round with the same model, as Sapwood is.
--driver: a program other than `sapwood bench` to send the workloads. It is called as `python DRIVER URL --only
NAME,NAME --scale S` and prints a JSON line for each workload, with "workload" or "w" (its name), "wall" (seconds),
"out_tps" and "all_tps" (tokens a second).
Each round runs all workloads on the one, then on the other; the table has the medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serving_bench import SAPWOOD, served

from sapwood.managers.cli.workloads import chosen_workloads
from sapwood.runtime.weights import hub

READY_SECONDS = 120


@dataclass(frozen=True)
class Figure:
    """Which figure of a workload counts, and the least ratio that issue 3 asks for."""

    name: str
    unit: str
    must: float

    @property
    def more_is_better(self) -> bool:
        return self.unit == "tok/s"


FIGURES = {
    "W1_single_decode": Figure("out_tps", "tok/s", 1.2),
    "W2_prefill": Figure("all_tps", "tok/s", 2.2),
    "W3_batch_unique": Figure("wall", "s", 1.9),
    "W4_few_shot": Figure("wall", "s", 6.0),
    "W5_tree": Figure("wall", "s", 4.0),
    "W6_multi_turn": Figure("wall", "s", 2.0),
}


def drive(driver: list[str], url: str, workloads: list[str], scale: float) -> dict[str, float]:
    """The figure of each workload on one server, once. driver: the command, its options apart."""
    command = [*driver, url, "--only", ",".join(workloads), "--scale", str(scale)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    lines = {line.get("workload") or line["w"]: line for line in results}
    missing = [name for name in workloads if name not in lines]
    if missing:
        raise SystemExit(f"the driver printed nothing for {', '.join(missing)}")
    return {name: float(lines[name][FIGURES[name].name]) for name in workloads}


@contextlib.contextmanager
def llama_served(program: Path, model: Path) -> Iterator[str]:
    """A fresh llama-server's address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-t", str(os.cpu_count()), "-c", "32768", "-np", "16", "--kv-unified", "--port", str(port)]
    command = [str(program), "-m", str(model), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _await_health(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < READY_SECONDS:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"the peer did not answer at {url}/health within {READY_SECONDS} s")


def table(ours: list[dict[str, float]], peers: list[dict[str, float]], workloads: list[str]) -> str:
    """Markdown: the medians, and how many times better ours is."""
    lines = ["| workload | Sapwood | peer | ratio | must |", "|---|---|---|---|---|"]
    for workload in workloads:
        figure = FIGURES[workload]
        own, other = (statistics.median(run[workload] for run in runs) for runs in (ours, peers))
        ratio = own / other if figure.more_is_better else other / own
        figures = f"{own:.1f} {figure.unit} | {other:.1f} {figure.unit}"
        lines.append(f"| {workload} | {figures} | {ratio:.2f} | {figure.must} |")
    return "\n".join(lines)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", type=Path, help="a program (default: sapwood bench)")
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--peer", help="the address of a running server")
    peer.add_argument("--llama-server", type=Path, help="the program")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", help="workloads, such as W1,W4 (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the workloads (default: 1.0)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no server stays behind
    workloads = chosen_workloads(options.only)
    driver = [sys.executable, str(options.driver)] if options.driver else [*SAPWOOD, "bench"]
    ours: list[dict[str, float]] = []
    peers: list[dict[str, float]] = []
    for number in range(options.rounds):
        with served() as (url, _):
            ours.append(drive(driver, url, workloads, options.scale))
        print(f"round {number + 1}, Sapwood: {ours[-1]}", flush=True)
        if options.peer:
            peers.append(drive(driver, options.peer, workloads, options.scale))
        else:
            with llama_served(options.llama_server, hub.resolve("smollm2")) as url:
                peers.append(drive(driver, url, workloads, options.scale))
        print(f"round {number + 1}, peer: {peers[-1]}", flush=True)
    print(f"\n{datetime.date.today()}, {_processor()}, {os.cpu_count()} cores, medians of {options.rounds}\n")
    print(table(ours, peers, workloads))


if __name__ == "__main__":
    main()
