"""Sapwood beside another server, turn by turn, and the table of the ratios.

    python tests/bench/peer_bench.py --driver load.py --peer http://127.0.0.1:8080 [--rounds 3]
    python tests/bench/peer_bench.py --driver load.py --llama-server build/bin/llama-server

--driver: a program that is called as `python DRIVER URL --only NAME,NAME --scale S` and prints a JSON line for each
workload, with "w" (its name), "wall" (seconds), "out_tps" and "all_tps" (tokens a second).
--peer: a server that is running already, and keeps what it has cached from one round to the next.
--llama-server: its program; it is started anew for each round with the same model, as Sapwood is.
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

from serving_bench import served

from sapwood.runtime.weights import hub

READY_SECONDS = 120


@dataclass(frozen=True)
class Workload:
    """What the driver calls it, which of its figures counts, and the least ratio that issue 3 asks for."""

    name: str
    figure: str
    unit: str
    must: float

    @property
    def more_is_better(self) -> bool:
        return self.unit == "tok/s"


WORKLOADS = (
    Workload("W1_single_decode", "out_tps", "tok/s", 1.2),
    Workload("W2_prefill", "all_tps", "tok/s", 2.2),
    Workload("W3_batch_unique", "wall", "s", 1.9),
    Workload("W4_few_shot", "wall", "s", 6.0),
    Workload("W5_tree", "wall", "s", 4.0),
    Workload("W6_multi_turn", "wall", "s", 2.0),
)


def drive(driver: Path, url: str, workloads: list[Workload], scale: float) -> dict[str, float]:
    """The figure of each workload on one server, once."""
    names = ",".join(workload.name for workload in workloads)
    command = [sys.executable, str(driver), url, "--only", names, "--scale", str(scale)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = {line["w"]: line for line in map(json.loads, done.stdout.splitlines())}
    missing = [workload.name for workload in workloads if workload.name not in lines]
    if missing:
        raise SystemExit(f"the driver printed nothing for {', '.join(missing)}")
    return {workload.name: float(lines[workload.name][workload.figure]) for workload in workloads}


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


def table(ours: list[dict[str, float]], peers: list[dict[str, float]], workloads: list[Workload]) -> str:
    """Markdown: the medians, and how many times better ours is."""
    lines = ["| workload | Sapwood | peer | ratio | must |", "|---|---|---|---|---|"]
    for workload in workloads:
        own, other = (statistics.median(run[workload.name] for run in runs) for runs in (ours, peers))
        ratio = own / other if workload.more_is_better else other / own
        figures = f"{own:.1f} {workload.unit} | {other:.1f} {workload.unit}"
        lines.append(f"| {workload.name} | {figures} | {ratio:.2f} | {workload.must} |")
    return "\n".join(lines)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", type=Path, required=True)
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--peer", help="the address of a running server")
    peer.add_argument("--llama-server", type=Path, help="the program")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", default="", help="workloads, such as W1,W4 (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the workloads (default: 1.0)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no server stays behind
    wanted = options.only.split(",") if options.only else [workload.name for workload in WORKLOADS]
    workloads = [workload for workload in WORKLOADS if any(workload.name.startswith(name) for name in wanted)]
    if not workloads:
        parser.error(f"--only: there are {', '.join(workload.name for workload in WORKLOADS)}")
    ours: list[dict[str, float]] = []
    peers: list[dict[str, float]] = []
    for number in range(options.rounds):
        with served() as (url, _):
            ours.append(drive(options.driver, url, workloads, options.scale))
        print(f"round {number + 1}, Sapwood: {ours[-1]}", flush=True)
        if options.peer:
            peers.append(drive(options.driver, options.peer, workloads, options.scale))
        else:
            with llama_served(options.llama_server, hub.resolve("smollm2")) as url:
                peers.append(drive(options.driver, url, workloads, options.scale))
        print(f"round {number + 1}, peer: {peers[-1]}", flush=True)
    print(f"\n{datetime.date.today()}, {_processor()}, {os.cpu_count()} cores, medians of {options.rounds}\n")
    print(table(ours, peers, workloads))


if __name__ == "__main__":
    main()
