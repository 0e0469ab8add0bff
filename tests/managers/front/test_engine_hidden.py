"""Hidden states of a prompt through every process: whatever the chunks, the cache and the company, the same bits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from sapwood import Engine
from sapwood.managers.front.params import GenerateRequest, to_submit
from sapwood.managers.front.results import Completion, collect
from sapwood.runtime.wanted import Wanted

TEXT = "The river runs past the old mill, and nobody remembers who built it. " * 6


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(smollm2_path, kv_tokens=4096, chunk_tokens=32, threads=1, audit=True, poison_freed=True) as engine:
        yield engine


async def asked(engine: Engine, prompt: str, start: int, max_tokens: int = 0) -> Completion:
    submit = to_submit(GenerateRequest(prompt=prompt, max_tokens=max_tokens, temperature=0.0), vocab_size=49152)
    stream = await engine._open(replace(submit, wanted=Wanted("hidden", start)))
    return (await collect(stream))[0]


def test_the_last_state_is_the_same_alone_in_company_warm_cold_and_chunked(engine: Engine) -> None:
    async def all_of_them() -> list[Completion]:
        alone = await asked(engine, TEXT, -1)
        warm = await asked(engine, TEXT, -1)
        whole = await asked(engine, TEXT, 0)
        crowd = await asyncio.gather(*(asked(engine, each + TEXT, -1) for each in ("", "So: ", "No. ")))
        return [alone, warm, whole, *crowd]

    alone, warm, whole, again, other, _ = engine._front.call(all_of_them())
    for each in (alone, warm, whole, again, other):
        assert each.hidden is not None
        assert each.hidden.width == 576
        assert (each.token_ids, each.finish_reason) == ([], "length")
    assert (len(alone.hidden), alone.hidden.start) == (1, alone.prompt_tokens - 1)
    assert warm.cached_tokens == alone.prompt_tokens - 1
    assert warm.hidden.packed == again.hidden.packed == alone.hidden.packed
    assert whole.hidden.values.shape == (whole.prompt_tokens, 576)
    assert np.array_equal(whole.hidden.values[-1:], alone.hidden.values)
    assert not np.array_equal(other.hidden.values, alone.hidden.values)


def test_it_may_be_asked_beside_a_completion(engine: Engine) -> None:
    completion = engine._front.call(asked(engine, TEXT, -1, max_tokens=4))
    assert completion.hidden is not None
    assert len(completion.hidden) == 1
    assert completion.token_ids == engine.generate(TEXT, max_tokens=4, temperature=0.0).token_ids
