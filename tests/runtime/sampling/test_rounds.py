"""Several tokens in one step: guesses that come true or not, and what a matcher does to a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.runtime.step import Failure, GrammarEdit

SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.3, "seed": 9, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.7},
]


@pytest.fixture(scope="module")
def driver(drive: Callable[..., Any], tiny_llama: Path) -> Any:
    return drive(tiny_llama, kv_tokens=4000, max_running=4)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 97, size).tolist() for size in (3, 17, 5, 26)]


@pytest.mark.parametrize("options", SAMPLED, ids=str)
@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_guesses_change_nothing_but_the_number_of_steps(
    driver: Any, entry: Any, prompts: list[list[int]], options: dict[str, Any], right: int
) -> None:
    """Row 0 guesses 5 tokens of which the first `right` are right; row 1 beside it guesses nothing."""
    prompt, other = prompts[2], prompts[3]
    whole, beside = driver.generate([prompt, other], 10, logprobs=2, **options)
    values = [[one.logprob for one in row] for row in driver.sampled]
    guesses = [*whole[1 : 1 + right], *((token + 1) % 97 for token in whole[1 + right : 6])]
    driver.open(0, prompt, logprobs=2, **options)
    driver.open(1, other, logprobs=2, **options)
    driver.step([entry(0, prompt, 0), entry(1, other, 0)])
    output = driver.step(
        [entry(0, [whole[0], *guesses], len(prompt), speculated=5), entry(1, [beside[0]], len(other))],
    )
    assert output.counts == [right + 1, 1]
    assert output.token_ids == [*whole[1 : right + 2], beside[1]]
    logprobs = [one.logprob for one in output.logprobs]
    np.testing.assert_allclose(logprobs, [*values[0][1 : right + 2], values[1][1]], atol=1e-5)
    assert [len(each.logprobs) for each in output.result.entries] == [right + 1, 1]
    follow = driver.step([entry(0, [-1], len(prompt) + right + 1), entry(1, [-1], len(other) + 1)])
    assert follow.token_ids == [whole[right + 2], beside[2]]
    driver.close(0)
    driver.close(1)


@dataclass
class Edit:
    token_ids: list[int]
    rewind: int = 0
    held: int = 0
    complete: bool = False
    failure: str = ""


class Script:
    """A matcher that allows every token but those of `banned`, and answers with the edits it was given."""

    def __init__(self, edits: list[Callable[[int], Edit]], banned: tuple[int, ...] = ()) -> None:
        self.edits = edits
        self.banned = banned

    def fill(self, bitmask: np.ndarray) -> None:
        assert not bitmask.any()
        bitmask[:] = -1
        for token in self.banned:
            bitmask[token // 32] &= ~np.int32(1 << (token % 32)) if token % 32 < 31 else np.int32(0x7FFFFFFF)

    def advance(self, token_id: int) -> Edit:
        assert token_id not in self.banned
        return self.edits.pop(0)(token_id)


def keep(token: int) -> Edit:
    return Edit([token])


def test_a_mask_forbids_tokens_of_its_own_row_only(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    [[first, *_]] = driver.generate([prompts[2]], 2)
    driver.open(0, prompts[2], matcher=Script([keep], banned=(first,)))
    driver.open(1, prompts[2])
    output = driver.step([entry(0, prompts[2], 0), entry(1, prompts[2], 0)])
    assert output.token_ids[0] != first
    assert output.token_ids[1] == first
    assert [each.edit is not None for each in output.result.entries] == [True, False]
    driver.close(0)
    driver.close(1)


def test_forced_tokens_come_with_the_sampled_one_and_count_as_generated(
    driver: Any, entry: Any, prompts: list[list[int]]
) -> None:
    prompt = prompts[2]
    forced = [5, 6, 7]
    matcher = Script([lambda token: Edit([token, *forced]), keep])
    driver.open(0, prompt, matcher=matcher, frequency_penalty=2.0)
    output = driver.step([entry(0, prompt, 0)])
    assert output.counts == [4]
    assert output.result.entries[0].edit == GrammarEdit(rewind=0, forced=3, held=0, complete=False)
    assert output.token_ids[1:] == forced
    gained = output.token_ids
    after = driver.step([entry(0, gained, len(prompt))]).token_ids
    driver.close(0)
    driver.open(0, prompt, output=gained, frequency_penalty=2.0)  # the penalties count the forced ones too
    assert driver.prefill(0, [*prompt, *gained]).token_ids == after
    driver.close(0)


class Panic(BaseException):
    """As what pyo3 raises for a panic in Rust."""


class Broken(Script):
    """A matcher that raises after so many tokens: where it is asked for a bitmask, or when it is given a token."""

    def __init__(self, error: BaseException, after: int, *, filling: bool) -> None:
        super().__init__([keep] * 99)
        self.error = error
        self.left = after
        self.filling = filling

    def fill(self, bitmask: np.ndarray) -> None:
        if self.filling and self.left == 0:
            bitmask[:] = 1  # half done
            raise self.error
        super().fill(bitmask)

    def advance(self, token_id: int) -> Edit:
        if self.left == 0:
            raise self.error
        self.left -= 1
        return super().advance(token_id)


@pytest.mark.parametrize("error", [RuntimeError("wormwood"), Panic("wormwood"), MemoryError(), RecursionError()])
@pytest.mark.parametrize("filling", [True, False])
@pytest.mark.parametrize("after", [0, 2])
def test_a_matcher_that_raises_fails_its_row_and_the_others_go_on_bit_for_bit(
    driver: Any, entry: Any, prompts: list[list[int]], error: BaseException, filling: bool, after: int
) -> None:
    options = {"temperature": 1.0, "logprobs": 1}
    expected = driver.generate([prompts[1]], 5, seed=5, **options)[0]
    logprobs = [each.logprob for each in driver.sampled[0]]
    driver.open(0, prompts[2], matcher=Broken(error, after, filling=filling), **options)
    driver.open(1, prompts[1], seed=5, **options)
    driver.open(2, prompts[3], matcher=Script([keep] * 9), **options)
    found, seen, failures = [], [], []
    for step in range(5):
        rows = [(0, prompts[2]), (1, prompts[1]), (2, prompts[3])][step > after :]
        ids = [prompt if step == 0 else [-1] for _, prompt in rows]
        starts = [0 if step == 0 else len(prompt) + step - 1 for _, prompt in rows]
        output = driver.step([entry(row, *each) for (row, _), *each in zip(rows, ids, starts)])
        *bad, free, other = output.result.entries
        found += free.token_ids
        seen += [each.logprob for each in free.logprobs]
        failures += [each.failure for each in bad]
        assert len(other.token_ids) == 1
        assert other.failure is None
    assert found == expected
    if driver.executor.runner.backend == "cpu":
        assert seen == logprobs
    else:  # what torch computes depends on the batch's size
        np.testing.assert_allclose(seen, logprobs, atol=1e-5)
    said = f"{type(error).__name__}: {error}"
    assert failures == [None] * after + [Failure("matcher", said)]
    for row in range(3):
        driver.close(row)


def test_a_matcher_that_raises_half_way_through_guesses_keeps_what_was_sampled_before(
    driver: Any, entry: Any, prompts: list[list[int]]
) -> None:
    [whole] = driver.generate([prompts[2]], 6)
    driver.open(0, prompts[2], matcher=Broken(Panic("wormwood"), 3, filling=True))
    driver.step([entry(0, prompts[2], 0)])
    output = driver.step([entry(0, whole[:4], len(prompts[2]), speculated=3)])
    [result] = output.result.entries
    assert result.token_ids == whole[1:3]
    assert result.failure == Failure("matcher", "Panic: wormwood")
    driver.close(0)


def test_an_edit_that_cannot_be_done_fails_its_row(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    driver.open(0, prompts[2], matcher=Script([lambda _: Edit([], rewind=3)]), frequency_penalty=1.0)
    driver.open(1, prompts[1])
    [bad, good] = driver.step([entry(0, prompts[2], 0), entry(1, prompts[1], 0)]).result.entries
    assert bad.failure == Failure("matcher", "IndexError: pop from empty list")
    assert (good.failure, len(good.token_ids)) == (None, 1)
    driver.close(0)
    driver.close(1)


def test_what_means_the_process_is_not_caught(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    driver.open(0, prompts[2], matcher=Broken(KeyboardInterrupt(), 0, filling=False))
    with pytest.raises(KeyboardInterrupt):
        driver.step([entry(0, prompts[2], 0)])
    driver.close(0)
    driver.step([])


def test_tokens_taken_back_no_longer_count_and_end_the_step(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[2]
    matcher = Script([keep, keep, lambda _: Edit([], rewind=2, held=0), keep])
    driver.open(0, prompt, matcher=matcher, frequency_penalty=2.0)
    first = driver.step([entry(0, prompt, 0)]).token_ids
    second = driver.step([entry(0, first, len(prompt))]).token_ids
    output = driver.step([entry(0, second, len(prompt) + 1)])
    assert output.counts == [0]
    assert output.result.entries[0].edit == GrammarEdit(rewind=2, forced=0, held=0, complete=False)
    again = driver.step([entry(0, prompt[-1:], len(prompt) - 1)])
    assert again.token_ids == first  # nothing is penalized any more
    driver.close(0)


def test_a_guess_goes_on_through_what_a_grammar_forces(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[2]
    [whole] = driver.generate([prompt], 6)
    forced = whole[2]
    matcher = Script([keep, lambda token: Edit([token, forced]), keep, lambda token: Edit([token], complete=True)])
    driver.open(0, prompt, matcher=matcher)
    driver.step([entry(0, prompt, 0)])
    output = driver.step([entry(0, whole[:4], len(prompt), speculated=3)])
    assert output.token_ids == whole[1:5]
    assert output.result.entries[0].edit == GrammarEdit(rewind=0, forced=1, held=0, complete=True)
    driver.close(0)
