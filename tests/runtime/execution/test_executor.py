"""An executor's answers depend on a row's own tokens only, however they were cut into steps and laid out in slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.wanted import Wanted
from tests.runtime.executors import executor_of

TOLERANCE = 1e-4
Drive = Callable[..., Any]


@pytest.fixture(scope="module")
def driver(drive: Drive, tiny_llama: Path) -> Any:
    return drive(tiny_llama)


@pytest.fixture
def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(0, 97, size).tolist() for size in (1, 2, 40, 17, 33, 64, 5)]


def reference(path: Path, ids: list[int]) -> np.ndarray:
    """transformers' log-probabilities [len(ids), vocab]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1).numpy()


def test_a_row_in_company_and_in_chunks_generates_what_it_does_alone(driver: Any, prompts: list[list[int]]) -> None:
    together = driver.generate(prompts, 8, logprobs=0)
    sampled = driver.sampled
    for row, prompt in enumerate(prompts):
        driver.open(0, prompt, logprobs=0)
        first = driver.prefill(0, prompt, chunk=7)
        driver.close(0)
        assert first.token_ids[0] == together[row][0]
        assert first.logprobs[0].logprob == pytest.approx(sampled[row][0].logprob, abs=TOLERANCE)
        assert driver.generate([prompt], 8) == [together[row]]


def test_scores_are_those_of_transformers_warm_chunked_or_whole(
    driver: Any, entry: Any, tiny_llama: Path, prompts: list[list[int]]
) -> None:
    prompt = prompts[5]
    expected = reference(tiny_llama, prompt)
    for chunk, score_start in ((64, 1), (64, 20), (9, 1), (9, 33), (1, 60)):
        driver.open(3, prompt, wanted=Wanted("logprobs", score_start, 4))
        found: dict[int, float] = {}
        for start in range(0, len(prompt), chunk):
            output = driver.step([entry(3, prompt[start : start + chunk], start, sample=False)])
            assert output.counts == [0]
            for run in output.scored:
                for position, (value, top) in enumerate(zip(run.logprobs, run.top, strict=True), run.start):
                    found[position] = value
                    likeliest = np.sort(expected[position - 1])[::-1][:4]
                    np.testing.assert_allclose(top.logprobs, likeliest, atol=TOLERANCE)
                    assert top.ids[0] == expected[position - 1].argmax()
        driver.close(3)
        assert sorted(found) == list(range(score_start, len(prompt)))
        own = [expected[position - 1, prompt[position]] for position in sorted(found)]
        np.testing.assert_allclose([found[position] for position in sorted(found)], own, atol=TOLERANCE)


def test_scoring_in_pieces_changes_nothing(
    driver: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = []
    for piece in (128, 5):
        monkeypatch.setattr("sapwood.runtime.execution.last_layer.PIECE", piece)
        driver.open(0, prompts[5], wanted=Wanted("logprobs", 1, 2))
        scores.append(driver.prefill(0, prompts[5]).scored[0])
        driver.close(0)
    np.testing.assert_allclose(scores[0].logprobs, scores[1].logprobs, atol=1e-5)
    assert [top.ids for top in scores[0].top] == [top.ids for top in scores[1].top]


def test_a_row_may_use_slots_that_another_fills_in_the_same_step(
    driver: Any, entry: Any, prompts: list[list[int]]
) -> None:
    prefix = prompts[2]
    first, second = [*prefix, 5, 6, 7], [*prefix, 8]
    alone = [driver.generate([prompt], 4)[0] for prompt in (first, second)]
    shared = driver.take(len(prefix))
    driver.open(0, first)
    driver.open(1, second)
    driver.write_slots(1, 0, shared)
    entries = [
        entry(1, second[len(prefix) :], len(prefix)),  # comes first, and still sees what the next one stores
        entry(0, first, 0, slots=shared + driver.take(3)),
    ]
    completions = [[token] for token in driver.step(entries).token_ids]
    for i in range(3):
        output = driver.step([entry(1, [-1], len(second) + i), entry(0, [-1], len(first) + i)])
        for completion, token in zip(completions, output.token_ids, strict=True):
            completion.append(token)
    assert completions == alone[::-1]
    driver.close(0)
    driver.close(1)


def test_rows_can_be_moved_to_other_slots_with_the_same_content(
    driver: Any, entry: Any, prompts: list[list[int]]
) -> None:
    prompt = prompts[3]
    expected = driver.generate([prompt], 3)[0]
    slots, copies = driver.take(len(prompt)), driver.take(len(prompt))
    driver.open(0, prompt)
    driver.open(1, prompt)
    output = driver.step([entry(0, prompt, 0, slots=slots), entry(1, prompt, 0, slots=copies)])
    assert output.token_ids == [expected[0]] * 2
    driver.write_slots(1, 0, slots)  # as after an insert that found the tree to hold the prompt already
    output = driver.step([entry(1, [-1], len(prompt))], poison=copies)
    assert output.token_ids == [expected[1]]
    driver.close(0)
    driver.close(1)


def test_a_row_that_reads_poisoned_slots_fails_alone(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    good, bad = prompts[2], prompts[3]
    expected = driver.generate([good], 3)[0]
    slots = driver.take(len(bad))
    driver.open(0, good)
    driver.open(1, bad, wanted=Wanted("logprobs", 1, 0))
    driver.step([entry(0, good, 0), entry(1, bad, 0, slots=slots)])
    output = driver.step([entry(0, [-1], len(good)), entry(1, [-1], len(bad))], poison=[slots[4]])
    assert (output.token_ids, output.counts) == ([expected[1]], [1, None])
    output = driver.step([entry(0, [-1], len(good) + 1), entry(1, [-1], len(bad) + 1)])  # was planned already
    assert (output.token_ids, output.counts) == ([expected[2]], [1, None])
    driver.close(1)
    driver.open(1, bad, wanted=Wanted("logprobs", 1))
    driver.write_slots(1, 0, slots)
    output = driver.step([entry(1, bad[6:], 6, sample=False)])
    assert output.counts == [None]
    assert not output.scored
    driver.close(0)
    driver.close(1)


def test_a_resumed_row_counts_what_it_had_generated(driver: Any, entry: Any, prompts: list[list[int]]) -> None:
    options = {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.4, "min_tokens": 6}
    stop_ids = list(range(0, 97, 3))
    prompt = prompts[4]
    whole = driver.generate([prompt], 8, stop_ids=stop_ids, **options)[0]
    assert not set(whole[:6]) & set(stop_ids)
    driver.open(0, prompt, output=whole[:4], stop_ids=stop_ids, **options)
    resumed = driver.prefill(0, prompt + whole[:4]).token_ids
    for i in range(3):
        resumed += driver.step([entry(0, [-1], len(prompt) + 4 + i)]).token_ids
    assert resumed == whole[4:]
    driver.close(0)


def test_a_step_without_entries_only_updates_rows(driver: Any) -> None:
    driver.open(0, [1, 2, 3])
    assert not len(driver.step([]).token_ids)
    assert len(driver.prefill(0, [1, 2, 3]).token_ids) == 1
    driver.close(0)
    assert not len(driver.step([]).token_ids)


@pytest.mark.parametrize(
    ("backend", "dtype", "kv_dtype"),
    [
        ("torch", "bfloat16", "auto"),
        ("torch", "float32", "bfloat16"),
        ("torch", "float16", "float32"),
        ("cpu", "float32", "bfloat16"),
        ("cpu", "float32", "float16"),
    ],
)
def test_other_dtypes_compute_nearly_the_same(
    drive: Drive, tiny_llama: Path, backend: str, dtype: str, kv_dtype: str, prompts: list[list[int]]
) -> None:
    expected = reference(tiny_llama, prompts[5])
    driver = drive(tiny_llama, dtype=dtype, kv_dtype=kv_dtype, attention_backend=backend)
    assert driver.executor.runner.backend == backend
    assert driver.executor.pool.dtype == getattr(torch, dtype if kv_dtype == "auto" else kv_dtype)
    driver.open(0, prompts[5], wanted=Wanted("logprobs", 1), logprobs=3)
    output = driver.prefill(0, prompts[5], chunk=50)
    own = [expected[position - 1, prompts[5][position]] for position in range(50, 64)]
    scored = output.scored[0].logprobs
    assert np.abs(np.array(scored[-13:]) - own[-13:]).max() < 0.3
    assert np.abs(np.array(scored[-13:]) - own[-13:]).max() > 1e-6  # it really is another dtype


def test_unknown_options_are_refused_by_name(tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModel, match="dtype 'int8' is not supported; there are auto, float32"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, dtype="int8")
    with pytest.raises(UnsupportedModel, match="kv_dtype 'fp8'"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, kv_dtype="fp8")
    with pytest.raises(UnsupportedModel, match="no attention backend 'magic' here; there are auto, cpu, torch"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, attention_backend="magic")
    with pytest.raises(ModelError, match="KV pool would hold 1 tokens"):
        executor_of(tiny_llama, max_running=1, kv_tokens=1)


@pytest.mark.parametrize(
    ("max_context", "kv_tokens", "expected"), [(0, 4096, 512), (100, 4096, 100), (9999, 4096, 512), (0, 64, 64)]
)
def test_the_context_is_the_least_of_wanted_model_and_pool(
    tiny_llama: Path, max_context: int, kv_tokens: int, expected: int
) -> None:
    executor = executor_of(tiny_llama, max_running=1, max_context=max_context, kv_tokens=kv_tokens)
    assert executor.max_context == expected
