"""Hidden states of a prompt through every process: whatever the chunks, the cache and the company, the same bits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from sapwood import Engine
from sapwood.managers.front.generation import Completion, collect
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS
from sapwood.runtime.wanted import HiddenStates, Wanted

TEXT = "The river runs past the old mill, and nobody remembers who built it. " * 6


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(smollm2_path, kv_tokens=4096, chunk_tokens=32, threads=1, audit=True, poison_freed=True) as engine:
        yield engine


async def asked(engine: Engine, prompt: str, start: int, max_tokens: int = 0) -> tuple[Completion, HiddenStates]:
    submit = to_submit(
        GenerateRequest(prompt=prompt, max_tokens=max_tokens, temperature=0.0),
        vocab_size=49152,
        defaults=OPENAI_DEFAULTS,
    )
    stream = await engine._open(replace(submit, wanted=Wanted("hidden", start)))
    [completion] = await collect(stream)
    assert completion.hidden is not None
    return completion, completion.hidden


def test_the_last_state_is_the_same_alone_in_company_warm_cold_and_chunked(engine: Engine) -> None:
    async def all_of_them() -> list[tuple[Completion, HiddenStates]]:
        alone = await asked(engine, TEXT, -1)
        warm = await asked(engine, TEXT, -1)
        whole = await asked(engine, TEXT, 0)
        crowd = await asyncio.gather(*(asked(engine, each + TEXT, -1) for each in ("", "So: ", "No. ")))
        return [alone, warm, whole, *crowd]

    found = engine._front.call(all_of_them())
    for completion, states in found:
        assert states.width == 576
        assert (completion.token_ids, completion.finish_reason) == ([], "length")
    length = found[0][0].prompt_tokens
    assert found[1][0].cached_tokens == length - 1
    alone, warm, whole, again, other, _ = (states for _, states in found)
    assert (len(alone), alone.start) == (1, length - 1)
    assert warm.packed == again.packed == alone.packed
    assert whole.values.shape == (length, 576)
    assert np.array_equal(whole.values[-1:], alone.values)
    assert not np.array_equal(other.values, alone.values)


def test_it_may_be_asked_beside_a_completion(engine: Engine) -> None:
    completion, states = engine._front.call(asked(engine, TEXT, -1, max_tokens=4))
    assert len(states) == 1
    assert completion.token_ids == engine.generate(TEXT, max_tokens=4, temperature=0.0).token_ids
