"""What is told of the last layer beside the next token: log-probabilities are tested with the executor, hidden states
here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.step import Failure
from sapwood.runtime.wanted import HiddenStates, PromptLogprobs, Wanted, joined


@pytest.fixture(scope="module")
def driver(drive: Callable[..., Any], tiny_llama: Path) -> Any:
    return drive(tiny_llama)


PROMPT = np.random.default_rng(8).integers(0, 97, 40).tolist()


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> np.ndarray:
    """What transformers calls the last hidden state, float32 [40, width]."""
    from transformers import AutoModel

    with torch.inference_mode():
        return AutoModel.from_pretrained(tiny_llama)(torch.tensor([PROMPT])).last_hidden_state[0].float().numpy()


def in_chunks(driver: Any, entry: Any, chunk: int, wanted: Wanted) -> HiddenStates:
    driver.open(0, PROMPT, wanted=wanted)
    found: list[Any] = []
    for start in range(0, len(PROMPT), chunk):
        found += driver.step([entry(0, PROMPT[start : start + chunk], start, sample=False)]).hidden
    driver.close(0)
    whole = joined(found)
    assert isinstance(whole, HiddenStates)
    return whole


@pytest.mark.parametrize("chunk", [64, 7, 1])
@pytest.mark.parametrize("start", [0, 13, 39])
def test_hidden_states_are_those_of_transformers_chunked_or_whole(
    driver: Any, entry: Any, expected: np.ndarray, chunk: int, start: int
) -> None:
    found = in_chunks(driver, entry, chunk, Wanted("hidden", start))
    assert (found.start, len(found), found.values.shape) == (start, 40 - start, (40 - start, 96))
    np.testing.assert_allclose(found.values, expected[start:], atol=2e-5, rtol=1e-4)
    if driver.executor.runner.backend == "cpu":
        assert found.packed == in_chunks(driver, entry, 64, Wanted("hidden", start)).packed


def test_they_come_beside_the_next_token_and_what_others_want(driver: Any, entry: Any) -> None:
    [[expected, _]] = driver.generate([PROMPT], 2)
    alone = in_chunks(driver, entry, 64, Wanted("hidden", 39))
    driver.open(0, PROMPT, wanted=Wanted("hidden", 39))
    driver.open(1, PROMPT, wanted=Wanted("logprobs", 1, 2))
    driver.open(2, PROMPT)
    one, two, three = driver.step([entry(row, PROMPT, 0) for row in range(3)]).result.entries
    assert [each.token_ids for each in (one, two, three)] == [[expected]] * 3
    np.testing.assert_allclose(one.prompt.values, alone.values, atol=1e-5)
    assert isinstance(two.prompt, PromptLogprobs)
    assert (len(two.prompt), three.prompt) == (39, None)
    for row in range(3):
        driver.close(row)


def test_states_that_are_not_finite_fail_their_row_alone(driver: Any, entry: Any) -> None:
    slots = driver.take(39)
    driver.open(0, PROMPT, wanted=Wanted("hidden", 39))
    driver.open(1, PROMPT, wanted=Wanted("hidden", 39))
    driver.step([entry(0, PROMPT[:39], 0, sample=False, slots=slots), entry(1, PROMPT[:39], 0, sample=False)])
    bad, good = driver.step(
        [entry(row, PROMPT[39:], 39, sample=False) for row in (0, 1)], poison=slots[:1]
    ).result.entries
    assert (bad.failure, bad.prompt) == (Failure("not finite"), None)
    assert (good.failure, len(good.prompt)) == (None, 1)
    driver.close(0)
    driver.close(1)


@pytest.mark.parametrize("size", [2])
def test_every_rank_has_them(
    drive_torch: Callable[..., Any], in_ranks: Callable[..., Any], entry: Any, tiny_llama: Path,
    expected: np.ndarray, size: int,
) -> None:  # fmt: skip
    def work(ranks: Any) -> Any:
        return in_chunks(drive_torch(tiny_llama, ranks=ranks), entry, 16, Wanted("hidden", 0))

    for found in in_ranks(size, work):
        np.testing.assert_allclose(found.values, expected, atol=2e-5, rtol=1e-4)
