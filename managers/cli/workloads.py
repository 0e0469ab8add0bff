"""Seeded workloads for any OpenAI-compatible server, and what they measured. It knows servers only by their URL.

Every prompt is random English words, so that nothing is shared but what a workload shares on purpose, and output
lengths are forced with `ignore_eos`, so that two servers do the same work.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from ...runtime.errors import SapwoodError

AT_ONCE = 16
_COMMON_WORDS = """
apple bridge candle desert engine forest garden harbor island jacket kitchen ladder market needle ocean palace
quarter river silver temple uncle valley window yellow basket circle dinner effort figure gather hunter insect
jungle kettle lesson mirror number office pencil record season ticket village winter animal butter copper danger
evening father ground hammer iron judge letter mother nature orange paper queen ribbon school table under voice
water young zone after begin carry dream early found great heavy inside known large money never other plant quick
"""
_WORDS = _COMMON_WORDS.split()


class BenchError(SapwoodError):
    """The server under measurement cannot be reached, or refused a request."""


@dataclass(frozen=True)
class TimedCompletion:
    """One completion. Times in seconds from sending the request."""

    first_token: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    text: str


class Result(msgspec.Struct, frozen=True):
    """One workload on one server: `out_tps` and `all_tps` are tokens per second, times are seconds."""

    workload: str
    server: str
    wall: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    out_tps: float
    all_tps: float
    ttft_p50: float
    ttft_max: float


class Target:
    """A server under measurement."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.url = url
        self._session = session
        self._model = model
        self._places = asyncio.Semaphore(AT_ONCE)

    async def complete(self, prompt: str, tokens: int) -> TimedCompletion:
        """One greedy, streamed completion of exactly `tokens` tokens; at most AT_ONCE run at once."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self._places:
            began = time.perf_counter()
            first: float | None = None
            texts: list[str] = []
            usage: dict = {}
            async with self._session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    raise BenchError(f"{self.url} answered {response.status}: {(await response.text())[:300]}")
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = msgspec.json.decode(line.removeprefix(b"data: "))
                    if "error" in event:
                        raise BenchError(f"{self.url}: {event['error']}")
                    usage = event.get("usage") or usage
                    for choice in event.get("choices") or []:
                        first = first or time.perf_counter() - began
                        texts.append(choice["text"])
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            last = time.perf_counter() - began
            return TimedCompletion(
                first or last, usage["prompt_tokens"], cached, usage["completion_tokens"], "".join(texts)
            )


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def _times(scale: float, count: int) -> range:
    return range(max(1, round(scale * count)))


async def _one_by_one(target: Target, prompts: list[str], tokens: int) -> list[TimedCompletion]:
    return [await target.complete(prompt, tokens) for prompt in prompts]


async def _together(target: Target, prompts: list[str], tokens: int) -> list[TimedCompletion]:
    return await asyncio.gather(*(target.complete(prompt, tokens) for prompt in prompts))


async def single_decode(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """One stream at a time, short prompts: how fast a lone client gets tokens."""
    return await _one_by_one(target, [_words(rng, 48) for _ in _times(scale, 3)], 128)


async def prefill(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """One long new prompt at a time, one token each: how fast prompts are computed."""
    return await _one_by_one(target, [_words(rng, 1000) for _ in _times(scale, 4)], 1)


async def batch_unique(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """Many prompts with nothing in common: batching alone."""
    return await _together(target, [_words(rng, 96) for _ in _times(scale, 48)], 64)


async def few_shot(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """One long shared prefix, short tails, short answers."""
    shared = _words(rng, 1000)
    return await _together(target, [f"{shared} {_words(rng, 24)}" for _ in _times(scale, 64)], 16)


async def tree(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """Three levels of four branches each, every level sent as its full text."""
    samples: list[TimedCompletion] = []
    level = [_words(rng, 500)]
    for _ in range(3):
        prompts = [f"{parent} {_words(rng, 20)}" for parent in level for _ in range(4)]
        answers = await _together(target, prompts, 24)
        samples += answers
        level = [p + a.text for p, a in zip(prompts, answers)][: len(_times(scale, 16))]
    return samples


async def multi_turn(target: Target, rng: random.Random, scale: float) -> list[TimedCompletion]:
    """Eight conversations of five turns, all at once."""

    async def conversation(own: random.Random) -> list[TimedCompletion]:
        history, samples = _words(own, 200), []
        for _ in range(5):
            history += " " + _words(own, 24)
            samples.append(await target.complete(history, 32))
            history += samples[-1].text
        return samples

    seeds = [rng.random() for _ in _times(scale, 8)]
    return [each for all_ in await asyncio.gather(*(conversation(random.Random(s)) for s in seeds)) for each in all_]


WORKLOADS: dict[str, Callable[[Target, random.Random, float], Awaitable[list[TimedCompletion]]]] = {
    "W1_single_decode": single_decode,
    "W2_prefill": prefill,
    "W3_batch_unique": batch_unique,
    "W4_few_shot": few_shot,
    "W5_tree": tree,
    "W6_multi_turn": multi_turn,
}


def chosen_workloads(only: str | None) -> list[str]:
    """Names from a list like "W1,W4_few_shot". Raises BenchError naming what does not exist."""
    if only is None:
        return list(WORKLOADS)
    chosen = []
    for wanted in only.split(","):
        found = [name for name in WORKLOADS if wanted in (name, name.partition("_")[0])]
        if not found:
            raise BenchError(f"There is no workload {wanted!r}; there are {', '.join(WORKLOADS)}.")
        chosen += found
    return chosen


async def measure(target: Target, workload: str, scale: float) -> Result:
    """Run one workload. The same workload sends the same prompts to every target."""
    began = time.perf_counter()
    samples = await WORKLOADS[workload](target, random.Random(workload), scale)
    wall = time.perf_counter() - began
    completion = sum(each.completion_tokens for each in samples)
    prompt = sum(each.prompt_tokens for each in samples)
    first = sorted(each.first_token for each in samples)
    return Result(
        workload=workload,
        server=target.url,
        wall=round(wall, 3),
        requests=len(samples),
        prompt_tokens=prompt,
        cached_tokens=sum(each.cached_tokens for each in samples),
        completion_tokens=completion,
        out_tps=round(completion / wall, 1),
        all_tps=round((completion + prompt) / wall, 1),
        ttft_p50=round(first[len(first) // 2], 4),
        ttft_max=round(first[-1], 4),
    )


async def open_target(session: aiohttp.ClientSession, url: str, model: str | None) -> Target:
    """A warmed-up target. Raises BenchError where there is no such server, or it serves nothing."""
    url = url.rstrip("/")
    try:
        target = Target(session, url, model or await _first_model(session, url))
        await target.complete(_words(random.Random(0), 30), 8)
    except aiohttp.ClientConnectorError:
        raise BenchError(f"Nothing answers at {url}.") from None
    except (aiohttp.ClientError, LookupError, TypeError, ValueError) as error:
        raise BenchError(f"Cannot measure {url}: {type(error).__name__}: {error}") from None
    return target


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        return (await response.json())["data"][0]["id"]
