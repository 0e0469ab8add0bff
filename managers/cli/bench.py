"""`sapwood bench`: run the workloads of `managers.cli.workloads` against one server, or against two side by side."""

from __future__ import annotations

import argparse
import asyncio

import aiohttp
import msgspec

from .workloads import BenchError, Result, Target, chosen_workloads, measure, open_target


def bench(arguments: argparse.Namespace) -> int:
    """Measure and print. Raises BenchError where a server cannot be measured."""
    if not arguments.scale > 0:
        raise BenchError(f"--scale must be above 0, not {arguments.scale}.")
    asyncio.run(_bench(arguments, chosen_workloads(arguments.only)))
    return 0


async def _bench(arguments: argparse.Namespace, workloads: list[str]) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        ours = await open_target(session, arguments.url, arguments.model)
        peer = await open_target(session, arguments.peer, arguments.model) if arguments.peer else None
        pairs = []
        for i, workload in enumerate(workloads):
            targets = [ours, peer] if peer else [ours]
            results = [await _measured(each, workload, arguments.scale) for each in (targets[:: -1 if i % 2 else 1])]
            pairs.append(results[:: -1 if i % 2 else 1])
        if peer:
            print(_table(pairs))


async def _measured(target: Target, workload: str, scale: float) -> Result:
    result = await measure(target, workload, scale)
    print(msgspec.json.encode(result).decode(), flush=True)
    return result


def _table(pairs: list[list[Result]]) -> str:
    """Ratios in which above 1 means that the first server is better."""
    lines = [f"\n{'ratio to the peer':<20} {'out tokens/s':>12} {'all tokens/s':>12} {'first token':>12}"]
    for ours, peer in pairs:
        ratios = (ours.out_tps / peer.out_tps, ours.all_tps / peer.all_tps, peer.ttft_p50 / ours.ttft_p50)
        lines.append(f"{ours.workload:<20} " + " ".join(f"{ratio:>11.2f}x" for ratio in ratios))
    return "\n".join(lines)
