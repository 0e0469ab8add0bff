"""A constraint that raises in the worker, at whatever place, fails its own request and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapwood import Engine
from sapwood.managers.front.generation import Generation
from sapwood.managers.front.supervisor import Supervisor
from sapwood.managers.wire.errors import RequestFailed

FAULTY = Path(__file__).parent.parent / "fakes" / "faulty_worker.py"
GOOD = {"prompt": "Once upon", "temperature": 0.8, "seed": 3, "max_tokens": 24, "logprobs": 2}


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    real = Supervisor._command

    def command(role: str) -> list[str]:
        return [sys.executable, str(FAULTY), role] if role == "worker" else real(role)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "_command", staticmethod(command))
        with Engine(smollm2_path, kv_tokens=4096, max_context=1024, threads=1, audit=True, poison_freed=True) as engine:
            yield engine


@pytest.mark.parametrize("place", ["load", "start", "fill", "advance"])
def test_it_fails_its_own_request_and_the_others_go_on_bit_for_bit(engine: Engine, place: str) -> None:
    expected = engine.generate(**GOOD)
    constrained = engine.generate(**GOOD, regex="[a-z ]+")

    async def together() -> list[Generation | BaseException]:
        bad = engine.agenerate("Once upon", regex=f"({place}s|[0-9]){{20}}", max_tokens=20, seed=1)
        others = [engine.agenerate(**GOOD), engine.agenerate(**GOOD, regex="[a-z ]+")]
        return await asyncio.gather(bad, *others, return_exceptions=True)

    failed, free, other = asyncio.run(together())
    assert isinstance(failed, RequestFailed)
    assert str(failed).startswith("the constraint ")
    assert f"Panic: in {place}" in str(failed)
    for one, another in ((free, expected), (other, constrained)):
        assert isinstance(one, Generation), one
        assert one.token_ids == another.token_ids
        assert one.logprobs == another.logprobs
    assert engine.generate(**GOOD).token_ids == expected.token_ids
