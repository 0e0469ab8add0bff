"""Times programs that branch: `python tests/bench/program_bench.py [--peer URL]`.

The examples tree_of_thought and essay_judge run by turns on a Sapwood server, on the same server with
`--no-prefix-cache`, and, where its address is given, on a llama-server with the same model (over its
`/v1/completions`). Before every run Sapwood's cache is emptied; the peer's is left as it is. Printed are the median
seconds, and how many times longer the others take.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from serving_bench import served

from sapwood import Backend, OpenAI, RuntimeEndpoint

ROOT = Path(__file__).parents[2]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def programs(width: int) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The programs with their arguments."""
    tree, judge = example("tree_of_thought"), example("essay_judge")
    sides = [*judge.SIDES, "title", "opening", "ending", "rhythm"]
    return {
        f"tree of thought, {width} x {width}": (tree.solve, (tree.PROBLEM, width)),
        f"judge, {len(sides)} sides": (judge.judge, (judge.ESSAY, sides)),
    }


def seconds(program: Any, arguments: tuple[Any, ...], backend: Backend) -> tuple[float, int, int]:
    """How long one run takes, and how many of its prompt tokens were computed."""
    if isinstance(backend, RuntimeEndpoint):
        backend.flush_cache()
    began = time.perf_counter()
    report = program.run(*arguments, backend=backend).report()
    return time.perf_counter() - began, report.computed_tokens, report.prompt_tokens


def compare(backends: dict[str, Backend], rounds: int, width: int) -> None:
    for title, (program, arguments) in programs(width).items():
        times: dict[str, list[float]] = {name: [] for name in backends}
        counts = {}
        for _ in range(rounds):
            for name, backend in backends.items():  # by turns, so that a slow minute hits all of them
                taken, *counts[name] = seconds(program, arguments, backend)
                times[name].append(taken)
        print(title)
        fastest = statistics.median(times["Sapwood"])
        for name, taken in times.items():
            middle = statistics.median(taken)
            computed, prompt = counts[name]
            of = (
                f"{computed} of {prompt} prompt tokens computed"
                if name != "llama-server"
                else f"{prompt} prompt tokens"
            )
            print(f"  {name:<24}{middle:6.2f} s   {middle / fastest:5.1f} times as long   {of}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="URL", help="of a llama-server with the same model")
    parser.add_argument("--rounds", type=int, default=3, help="runs on each server (default: 3)")
    parser.add_argument("--width", type=int, default=4, help="branches at each step of the tree (default: 4)")
    arguments = parser.parse_args()
    with served() as (shared, _), served("--no-prefix-cache") as (plain, _):
        backends: dict[str, Backend] = {
            "Sapwood": RuntimeEndpoint(shared),
            "without prefix cache": RuntimeEndpoint(plain),
        }
        if arguments.peer:
            backends["llama-server"] = OpenAI("smollm2", base_url=f"{arguments.peer.rstrip('/')}/v1", chat=False)
        compare(backends, arguments.rounds, arguments.width)


if __name__ == "__main__":
    main()
