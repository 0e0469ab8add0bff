"""What a schema that was never seen costs a running server: `python tests/bench/grammar_bench.py URL SCHEMAS...`.

SCHEMAS: .jsonl files with a "schema" in each line. Prints the time to the first token with and without a new schema
(paired, so that the machine's moods cancel), and what running streams lose while 50 new schemas arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp

PROMPT = "A document, as JSON:\n"
STREAMS = 2
ARRIVALS = 50
SECONDS = 3.0


async def pieces(session: aiohttp.ClientSession, url: str, **body: Any) -> AsyncGenerator[int]:
    """The HTTP status, then the number of tokens in every event."""
    body = {"prompt": PROMPT, "stream": True, "temperature": 0, **body}
    async with session.post(f"{url}/generate", json=body) as answer:
        yield answer.status
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield sum(len(choice["token_ids"]) for choice in json.loads(line[6:]).get("choices", []))


async def first_token(session: aiohttp.ClientSession, url: str, **body: Any) -> tuple[float, int]:
    """(seconds to the first token or the refusal, HTTP status)."""
    began = time.perf_counter()
    stream = pieces(session, url, max_tokens=2, **body)
    status = await anext(stream)
    if status == 200:
        await anext(stream)
    seconds = time.perf_counter() - began
    await stream.aclose()
    return seconds, status


def unseen(schema: Any, number: int) -> Any:
    """The same schema as the server has never seen it."""
    return {**schema, "title": f"{time.time_ns()} {number}"} if isinstance(schema, dict) else schema


async def added_delay(session: aiohttp.ClientSession, url: str, schemas: list[Any]) -> None:
    added, refused = [], 0
    for i, schema in enumerate(schemas):
        plain, _ = await first_token(session, url)
        seconds, status = await first_token(session, url, json_schema=unseen(schema, i))
        refused += status != 200
        if status == 200:
            added.append(1000 * (seconds - plain))
    at = statistics.quantiles(added, n=100)
    print(
        f"a new schema adds to the first token: median {at[49]:.1f} ms, 90th percentile {at[89]:.1f} ms, "
        f"99th {at[98]:.1f} ms ({len(added)} schemas; {refused} refused)"
    )


async def stream_rate(session: aiohttp.ClientSession, url: str, schemas: list[Any]) -> None:
    tokens = 0

    async def run() -> None:
        nonlocal tokens
        stream = pieces(session, url, max_tokens=100_000, ignore_eos=True)
        await anext(stream)
        async for count in stream:
            tokens += count

    async def rate(kind: str) -> float:
        """Of streams that are new each time: the longer a text, the slower."""
        running = [asyncio.create_task(run()) for _ in range(STREAMS)]
        await asyncio.sleep(0.5)
        arriving = asyncio.create_task(arrivals(constrained=kind == "schemas") if kind != "alone" else asyncio.sleep(0))
        before = tokens
        await asyncio.sleep(SECONDS)
        gained = tokens - before
        await arriving
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return gained / SECONDS

    async def arrivals(constrained: bool) -> None:
        async def one(i: int) -> None:
            await asyncio.sleep(SECONDS * i / ARRIVALS)
            schema = unseen(schemas[(i * 7) % len(schemas)], i)
            await first_token(session, url, **({"json_schema": schema} if constrained else {}))

        await asyncio.gather(*map(one, range(ARRIVALS)))

    beside_nothing, beside_plain = [], []
    for _ in range(3):
        alone, plain, constrained = [await rate(kind) for kind in ("alone", "plain", "schemas")]
        beside_nothing.append(constrained / alone)
        beside_plain.append(constrained / plain)
    print(
        f"{STREAMS} streams, while {ARRIVALS} requests with new schemas arrive in {SECONDS:g} s, run at "
        f"{statistics.median(beside_nothing):.2f} of their rate alone, and at {statistics.median(beside_plain):.2f} of "
        f"their rate while as many requests without schemas arrive"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("schemas", nargs="+", type=Path)
    arguments = parser.parse_args()
    lines = [line for path in arguments.schemas for line in path.read_text().splitlines()]
    schemas = [json.loads(line)["schema"] for line in lines]
    async with aiohttp.ClientSession() as session:
        await first_token(session, arguments.url, json_object=True)
        await added_delay(session, arguments.url, schemas)
        await stream_rate(session, arguments.url, schemas)


if __name__ == "__main__":
    asyncio.run(main())
