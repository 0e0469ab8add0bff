"""A step that is launched before the last one's tokens are known gives what it gives after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PLAIN: dict[str, Any] = {"temperature": 0.0}
DRAWN: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
LOOKING_BACK: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.5, "temperature": 1.0},
    {"min_tokens": 3},
    {"logprobs": 2},
]


@dataclass(frozen=True)
class Taken:
    token_ids: list[int]
    rewind: int = 0
    held: int = 0
    complete: bool = False
    failure: str = ""


class Odd:
    """A matcher of odd token ids."""

    def fill(self, bitmask: np.ndarray) -> None:
        bitmask[:] = np.int32(-0x55555556)  # 0xAAAAAAAA

    def advance(self, token_id: int) -> Taken:
        return Taken([token_id])


@pytest.fixture(scope="module")
def pair(drive_torch: Callable[..., Any], tiny_llama: Path) -> list[Any]:
    """Two drivers of the same model: one waits for every step, one does not."""
    drivers = [drive_torch(tiny_llama), drive_torch(tiny_llama)]
    drivers[1].executor.ahead = True
    return drivers


def scenario(seed: int, entry: Any, driver: Any, *, waits: bool) -> list[Any]:
    """What every step of a random workload gives. Rows come, prefill in chunks, decode and go, by turns, and a row that
    has gone is taken at once by another prompt."""
    random = np.random.default_rng(seed)
    outputs: list[Any] = []
    flying: list[Any] = []
    lengths: dict[int, int] = {}
    todo: dict[int, list[int]] = {}
    for _ in range(40):
        entries = []
        for row in range(4):
            if row not in lengths and random.random() < 0.5:
                looks_back = random.random() < 0.15
                options = (
                    LOOKING_BACK[int(random.integers(4))] if looks_back else [PLAIN, DRAWN][int(random.integers(2))]
                )
                todo[row] = random.integers(0, 97, int(random.integers(1, 30))).tolist()
                driver.open(row, todo[row], seed=int(random.integers(1 << 30)), stop_ids=[5], **options)
                lengths[row] = 0
            if row in lengths and random.random() < 0.8:
                chunk = todo[row][:12] or [-1]
                todo[row] = todo[row][12:]
                entries.append(entry(row, chunk, lengths[row], sample=not todo[row]))
                lengths[row] += len(chunk)
        if entries:
            flying.append(driver.launch(entries))
        while len(flying) > (0 if waits else 1):
            outputs.append(driver.gained(flying.pop(0)))
        for row in [row for row in lengths if not todo[row] and random.random() < 0.1]:
            driver.close(row)
            del lengths[row]
    outputs += [driver.gained(each) for each in flying]
    for row in lengths:
        driver.close(row)
    driver.step([])
    return outputs


@pytest.mark.parametrize("seed", range(6))
def test_steps_in_flight_give_what_steps_one_by_one_give(pair: list[Any], entry: Any, seed: int) -> None:
    alone = scenario(seed, entry, pair[0], waits=True)
    ahead = scenario(seed, entry, pair[1], waits=False)
    assert len(alone) == len(ahead) > 20
    for one, other in zip(alone, ahead, strict=True):
        assert one.counts == other.counts
        assert one.token_ids == other.token_ids
        of_one, of_other = ([len(each.logprobs) for each in run.result.entries] for run in (one, other))
        assert of_one == of_other


def test_a_plain_decode_does_not_wait_and_one_that_looks_back_does(pair: list[Any], entry: Any) -> None:
    driver = pair[1]
    prompt = [3, 1, 4, 1, 5]
    driver.open(0, prompt, temperature=0.5, seed=1)
    first = driver.launch([entry(0, prompt, 0)])
    second = driver.launch([entry(0, [-1], 5)])
    assert first.chosen is not None
    third = driver.launch([entry(0, [-1], 6)])
    assert first.chosen is None  # never more than two are under way
    driver.open(1, prompt, frequency_penalty=1.0)
    fourth = driver.launch([entry(0, [-1], 7), entry(1, prompt, 0)])
    assert third.chosen is second.chosen is None
    assert driver.gained(fourth).counts == [1, 1]
    driver.close(0)
    driver.close(1)
    driver.step([])


@pytest.mark.parametrize("options", LOOKING_BACK)
def test_what_looks_back_is_not_started_ahead(pair: list[Any], entry: Any, options: dict[str, Any]) -> None:
    driver = pair[1]
    driver.open(0, [1, 2, 3], **options)
    first = driver.launch([entry(0, [1, 2, 3], 0)])
    assert first.chosen is None
    second = driver.launch([entry(0, [-1], 3)])
    assert second.chosen is None
    driver.close(0)
    driver.step([])


def test_logits_that_are_not_finite_fail_their_row_alone_also_in_flight(
    tiny_llama: Path, drive_torch: Any, entry: Any
) -> None:
    driver = drive_torch(tiny_llama)
    driver.executor.ahead = True
    slots = driver.take(4)
    driver.open(0, [1, 2, 3, 4])
    driver.open(1, [1, 2, 3, 4])
    driver.launch([entry(0, [1, 2, 3], 0, sample=False, slots=slots[:3]), entry(1, [1, 2, 3], 0, sample=False)])
    bad = driver.launch([entry(0, [4], 3), entry(1, [4], 3)], poison=slots[:1])
    after = driver.launch([entry(0, [-1], 4), entry(1, [-1], 4)])
    assert driver.gained(bad).counts == [None, 1]
    assert driver.gained(after).counts == [None, 1]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_launch_ahead_too(
    pair: list[Any],
    entry: Any,
    drive_torch: Callable[..., Any],
    tiny_llama: Path,
    in_ranks: Callable[..., Any],
    size: int,
) -> None:
    alone = scenario(7, entry, pair[0], waits=True)

    def work(ranks: Any) -> list[Any]:
        driver = drive_torch(tiny_llama, ranks=ranks)
        driver.executor.ahead = True
        return scenario(7, entry, driver, waits=False)

    for one, other in zip(alone, in_ranks(size, work)[0], strict=True):
        assert one.counts == other.counts
        assert one.token_ids == other.token_ids


def test_ranks_without_the_matchers_keep_in_step_with_the_one_that_has_them(
    entry: Any, drive_torch: Callable[..., Any], tiny_llama: Path, in_ranks: Callable[..., Any]
) -> None:
    """The first rank waits where a row is constrained; the others, who do not know, launch ahead all the same."""

    def rounds(driver: Any, *, constrained: bool) -> list[list[int]]:
        driver.open(0, [1, 2, 3], seed=1, temperature=0.9, matcher=Odd() if constrained else None)
        driver.open(1, [4, 5], seed=2, temperature=0.9)
        flying = [driver.launch([entry(0, [1, 2, 3], 0), entry(1, [4, 5], 0)])]
        flying += [driver.launch([entry(1, [-1], 2 + i), entry(0, [-1], 3 + i)]) for i in range(6)]
        flying += [driver.launch([entry(1, [-1], 8 + i)]) for i in range(3)]
        return [driver.gained(each).token_ids for each in flying]

    def work(ranks: Any) -> list[list[int]]:
        driver = drive_torch(tiny_llama, ranks=ranks)
        driver.executor.ahead = True
        return rounds(driver, constrained=ranks.leads)

    expected = rounds(drive_torch(tiny_llama), constrained=True)
    assert all(each[-1] % 2 for each in expected[1:7])
    assert in_ranks(2, work) == [expected] * 2
