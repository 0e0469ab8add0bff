"""A model computed by several ranks gives what one computes: the same tokens, and log-probabilities to 1e-4.

The ranks are threads here, each with an executor of its own; they exchange over gloo as processes do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.errors import RankLost, UnsupportedModel
from sapwood.runtime.execution.ranks import Ranks
from sapwood.runtime.model.families.registry import family_of
from sapwood.runtime.model.loading import load_model
from sapwood.runtime.model.shard import cut
from sapwood.runtime.model.tensors import TensorSpec
from sapwood.runtime.wanted import Wanted
from tests.runtime.executors import executor_of

TOLERANCE = 1e-4
Drive = Callable[..., Any]
InRanks = Callable[..., list[Any]]


# --- what they exchange ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_exchange_sums_columns_and_numbers(in_ranks: InRanks, size: int) -> None:
    def work(ranks: Ranks) -> tuple[Any, ...]:
        columns = torch.arange(22.0).view(2, 11)[:, list(cut(11, size)[ranks.rank])]
        return (
            ranks.leads,
            ranks.sum(torch.arange(6.0).view(2, 3).T + ranks.rank).tolist(),
            ranks.join_columns(columns, 11).tolist(),
            ranks.told_by_first([10 + ranks.rank, 20]),
            ranks.total(2**40 + ranks.rank),
            ranks.least(5 + ranks.rank),
        )

    answers = in_ranks(size, work)
    extra = sum(range(size))
    for rank, (leads, summed, joined, told, total, least) in enumerate(answers):
        assert leads == (rank == 0)
        assert summed == [[3 * 0 + size * a + extra for a in row] for row in ([0, 3], [1, 4], [2, 5])]
        assert joined == ([] if rank else [[float(i) for i in range(11)], [float(i) for i in range(11, 22)]])
        assert (told, total, least) == ([10, 20], size * 2**40 + extra, 5)


def test_a_rank_whose_peer_is_gone_says_so(in_ranks: InRanks) -> None:
    def work(ranks: Ranks) -> str:
        if not ranks.leads:
            return "gone"  # with it goes its end of the connection
        with pytest.raises(RankLost, match="rank 0 lost another rank"):
            ranks.sum(torch.zeros(4))
        return "told"

    assert in_ranks(2, work) == ["told", "gone"]


# --- what they compute ----------------------------------------------------------------------------------------------

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"vocab_size": 97}),
    "llama, tied": ("llama", {"vocab_size": 97, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2": ("qwen2", {"vocab_size": 97, "intermediate_size": 95}),
    "qwen2, tied": ("qwen2", {"vocab_size": 97, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {"vocab_size": 97, "head_dim": 16}),
    "mistral": ("mistral", {"vocab_size": 97, "sliding_window": 6}),
    "gemma3": ("gemma3_text", {"vocab_size": 97, "head_dim": 16, "sliding_window": 6}),
    "gemma2": (
        "gemma2",
        {
            "vocab_size": 97,
            "head_dim": 16,
            "sliding_window": 6,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5,
        },
    ),
}


@pytest.fixture(scope="module")
def saved(build: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def save(name: str) -> Path:
        family, options = MODELS[name]
        path = tmp_path_factory.mktemp("ranks")
        build(family, **options).save_pretrained(path)
        return path

    return save


def behaviour(driver: Any, entry: Any, prompts: list[list[int]], guesses: list[int] | None = None) -> dict[str, Any]:
    """What a driver's executor gives for a mix of all that is asked of one; empty in other ranks than the first."""
    options = {"temperature": 0.9, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.2}
    greedy = driver.generate(prompts, 4, logprobs=3)
    logprobs = [[one.logprob for one in row] for row in driver.sampled]
    drawn = driver.generate(prompts, 4, **options)
    driver.open(0, prompts[0], wanted=Wanted("logprobs", 1, 2))
    first = driver.prefill(0, prompts[0], chunk=7)
    output = driver.step([entry(0, [-1, *(guesses or greedy[0][1:4])], len(prompts[0]), speculated=3)])
    driver.close(0)
    return {
        "greedy": greedy,
        "drawn": drawn,
        "logprobs": np.array(logprobs),
        "scored": np.array([value for run in first.scored for value in run.logprobs]),
        "speculated": output.token_ids,
    }


def compared(
    in_ranks: InRanks, drive: Drive, entry: Any, path: Path, sizes: tuple[int, ...], **options: Any
) -> dict[int, list[Any]]:
    """Checks that two, three, … ranks behave as one does. The executors of the ranks, by how many there are."""
    alone = drive(path, **options)
    vocab = alone.executor.runner.config.vocab_size
    random = np.random.default_rng(5)
    prompts = [random.integers(0, vocab, length).tolist() for length in (20, 1, 9)]
    expected = behaviour(alone, entry, prompts)
    guesses = expected["greedy"][0][1:4]
    assert len(expected["speculated"]) == 4  # the guesses come true

    def work(ranks: Ranks) -> tuple[Any, Any]:
        driver = drive(path, ranks=ranks, **options)
        return driver.executor, behaviour(driver, entry, prompts, guesses)

    executors: dict[int, list[Any]] = {}
    for size in sizes:
        (_, found), *others = answers = in_ranks(size, work)
        for name in ("greedy", "drawn", "speculated"):
            assert found[name] == expected[name], (size, name)
        for name in ("logprobs", "scored"):
            np.testing.assert_allclose(found[name], expected[name], atol=TOLERANCE, err_msg=f"{name} of {size} ranks")
        for _, other in others:  # they are told each row's last token, and nothing else
            assert other["greedy"] == expected["greedy"]
            assert other["speculated"] == expected["speculated"][-1:]
            assert not other["logprobs"].size
        executors[size] = [executor for executor, _ in answers]
    return executors


@pytest.mark.parametrize("drive", ["torch"], indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_compute_what_one_does(
    in_ranks: InRanks, drive: Drive, entry: Any, saved: Callable[[str], Path], name: str
) -> None:
    compared(in_ranks, drive, entry, saved(name), (2, 3, 4))


@pytest.mark.parametrize("drive", ["torch"], indirect=True)
@pytest.mark.parametrize("quantization", ["F32", "Q8_0"])
def test_ranks_read_their_parts_of_a_gguf_file(
    in_ranks: InRanks,
    drive: Drive,
    entry: Any,
    build: Callable[..., Any],
    save_gguf: Callable[..., Path],
    tmp_path: Path,
    quantization: str,
) -> None:
    """Heads of 16 columns and an inner width of 96: the cuts go through the blocks of 32 that Q8_0 has."""
    compared(in_ranks, drive, entry, save_gguf(build("llama"), tmp_path / "model.gguf", quantization), (4,))


@pytest.mark.slow
@pytest.mark.parametrize("drive", ["torch"], indirect=True)
def test_ranks_compute_smollm2(in_ranks: InRanks, drive: Drive, entry: Any, smollm2_path: Path) -> None:
    """9 query heads over 3 key-value heads: two ranks have 6 and 3 of them."""
    executors = compared(in_ranks, drive, entry, smollm2_path, (2, 3), kv_tokens=256)
    for size, kv_heads in ((2, [2, 1]), (3, [1, 1, 1])):
        assert [each.pool.layer(0)[0].shape[1] for each in executors[size]] == kv_heads
        norms = 61 * 576  # which every rank has
        held = sum(each.runner.weight_bytes for each in executors[size])
        assert held == 4 * (134_515_008 + (size - 1) * norms)
        assert {each.runner.parameters for each in executors[size]} == {134_515_008}


def test_a_rank_holds_no_more_than_its_part(in_ranks: InRanks, saved: Callable[[str], Path]) -> None:
    path = saved("llama")
    whole = load_model(path, torch.float32)
    parts = in_ranks(3, lambda ranks: load_model(path, torch.float32, ranks=ranks))
    held = [
        {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in part.parameters()}
        for part in parts
    ]
    most = max(sum(storages.values()) for storages in held)
    assert most < 0.6 * whole.embed.untyped_storage().nbytes()  # one of them has half of the heads


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma2", "qwen3"])
def test_a_family_cuts_every_matrix_but_no_norm(family: str, saved: Callable[[str], Path]) -> None:
    config = load_model(saved(family), torch.float32).config

    def is_norm(spec: TensorSpec) -> bool:
        return "norm" in spec.part

    for spec in family_of(family).tensors(config):
        assert bool(spec.rows) + bool(spec.columns) == (not is_norm(spec)), spec


# --- options --------------------------------------------------------------------------------------------------------


def test_the_pool_is_as_large_as_all_can_hold(
    in_ranks: InRanks, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks on one machine share its memory, and have equally many slots whatever each of them takes for a token."""
    path = saved("llama")
    monkeypatch.setattr("sapwood.runtime.execution.kv_pool.available_memory", lambda: 10_000_000)
    options: dict[str, Any] = {"max_running": 1, "kv_memory_fraction": 0.5, "attention_backend": "torch"}
    alone = executor_of(path, **options)
    executors = in_ranks(2, lambda ranks: executor_of(path, ranks=ranks, **options))
    assert [each.pool.slots for each in executors] == [alone.pool.slots] * 2
    assert sum(each.pool.nbytes for each in executors) == alone.pool.nbytes
    least = in_ranks(2, lambda ranks: executor_of(path, ranks=ranks, **options, kv_tokens=100 + ranks.rank))
    assert [each.pool.slots for each in least] == [100, 100]


def test_the_kernels_share_no_model_and_say_so(saved: Callable[[str], Path]) -> None:
    path = saved("llama")

    class Two(Ranks):
        size = 2

    options: dict[str, Any] = {"max_running": 1, "kv_tokens": 64}
    sentence = "the kernels do not divide a model, and tp is 2"
    with pytest.raises(UnsupportedModel, match=f"the cpu backend cannot be used: {sentence}"):
        executor_of(path, ranks=Two(), attention_backend="cpu", **options)
    with pytest.raises(UnsupportedModel, match=f"quantize needs the cpu backend, which is not used: {sentence}"):
        executor_of(path, ranks=Two(), quantize="q8_0", **options)
    executor = executor_of(path, ranks=Two(), **options)
    assert (executor.note, executor.runner.backend) == (sentence, "torch")
    assert not executor_of(path, attention_backend="torch", **options).note
