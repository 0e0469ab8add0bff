"""What a GPU runs, on the CPU: FlashInfer's stand-in, the fused forward pass, and graphs whose replay runs again what
was captured, on the memory that it was captured with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.attention import paging
from sapwood.runtime.attention.base import AttentionBatch, SharedPrefix
from sapwood.runtime.attention.flashinfer import FlashInferAttention
from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.execution import graphs
from sapwood.runtime.execution.executor import Executor
from sapwood.runtime.execution.graphs import ladder
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.ranks import ALONE, Ranks
from sapwood.runtime.execution.runner import ModelStep, TorchRunner
from sapwood.runtime.model import fixed_rows
from sapwood.runtime.model.fixed_rows import FixedRows
from sapwood.runtime.model.forward import Forward
from sapwood.runtime.model.fused import FusedArithmetic
from sapwood.runtime.model.loading import load_model

SLOTS = 600
MOST = 6


@pytest.fixture(scope="module", params=["llama", "qwen2", "mistral", "gemma2", "qwen3", "gemma3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """Random, with heads of 64, which FlashInfer has; qwen2's matrices have biases, llama's rotation is scaled. The
    windows of mistral, gemma2 and gemma3 are shorter than most of what the tests compute."""
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 96,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    scaling: Any = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    if request.param == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(head_dim=64, rope_parameters=scaling, **sizes))
    elif request.param == "mistral":
        model = MistralForCausalLM(MistralConfig(head_dim=64, sliding_window=20, **sizes))
    elif request.param in ("qwen3", "gemma2", "gemma3"):
        caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 100}
        if request.param == "gemma2":
            model = Gemma2ForCausalLM(Gemma2Config(head_dim=64, sliding_window=20, **caps, **sizes))
        elif request.param == "gemma3":
            other = {"query_pre_attn_scalar": 100, "sliding_window_pattern": 2}
            model = Gemma3ForCausalLM(Gemma3TextConfig(head_dim=64, sliding_window=20, **other, **sizes))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(head_dim=64, **sizes))
        for name, norm in model.named_parameters():
            if name.endswith("norm.weight"):
                torch.nn.init.normal_(norm, mean=float(request.param == "qwen3"), std=0.3)
    else:
        sizes["hidden_size"] = 384
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.q_proj.bias, std=0.3)
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "attention"))
    monkeypatch.setitem(sys.modules, "flashinfer", importlib.import_module("fake_flashinfer"))
    return sys.modules["flashinfer"]


def recapture(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
    """A graph that is none: to replay it is to run it again, into the same result."""
    result = function()

    def replay() -> None:
        result.copy_(function())

    return result, replay


def gpu_runner(
    path: Path, *, with_graphs: bool, dtype: torch.dtype = torch.float16, ranks: Ranks = ALONE
) -> TorchRunner:
    model = load_model(path, dtype, ranks=ranks)
    own = model.shard.config
    pool = KVPool(own, SLOTS, dtype)
    attention = FlashInferAttention(own, pool, dtype)
    runner = TorchRunner(model, pool, attention, Forward(model, FusedArithmetic(model, attention.kernels)))
    runner.warm_up()
    if with_graphs:
        said: list[str] = []
        runner.capture_decodes(MOST, recapture, said.append)
        assert said[0] == f"capturing a CUDA graph for {MOST} sequences"
        assert len(said) == len(ladder(MOST))
    return runner


def plain_runner(path: Path, dtype: torch.dtype = torch.float16) -> TorchRunner:
    model = load_model(path, dtype)
    pool = KVPool(model.config, SLOTS, dtype)
    return TorchRunner(model, pool, TorchAttention(model.config, pool))


def random_steps(random: np.random.Generator, count: int) -> list[ModelStep]:
    """Steps of three sequences that share their first 30 slots: prefills and decodes by turns, the last one fed."""
    order = random.permutation(SLOTS).astype(np.int32)
    shared = order[:30]
    own = [order[30 + 80 * i :][:80] for i in range(3)]
    lengths = [30, 30, 30]
    steps = [_step(random, [(shared, 0, 30)], [])]
    for number in range(count):
        entries = []
        for i in range(3):
            more = 1 if number % 2 else int(random.integers(1, 6))
            entries.append((np.concatenate((shared, own[i]))[: lengths[i] + more], lengths[i], more))
            lengths[i] += more
        picked = random.permutation(3)[: int(random.integers(1, 4))].tolist()
        for i in set(range(3)) - set(picked):
            lengths[i] -= entries[i][2]
        chosen = [entries[i] for i in picked]
        groups = [SharedPrefix(range(len(chosen)), 30)] if len(chosen) > 1 else []
        steps.append(_step(random, chosen, groups))
    return steps


def _step(random: np.random.Generator, entries: list[tuple[np.ndarray, int, int]], shared: list[SharedPrefix]) -> Any:
    counts = [more for _, _, more in entries]
    total = sum(counts)
    wanted = np.sort(random.permutation(total)[: int(random.integers(1, total + 1))]).astype(np.int32)
    return ModelStep(
        token_ids=random.integers(0, 61, total).astype(np.int32),
        positions=np.concatenate([np.arange(start, start + more) for _, start, more in entries]).astype(np.int32),
        slots=np.concatenate([slots[start : start + more] for slots, start, more in entries]).astype(np.int32),
        qo_indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        kv_indptr=np.concatenate(([0], np.cumsum([len(slots) for slots, _, _ in entries]))).astype(np.int32),
        kv_indices=np.concatenate([slots for slots, _, _ in entries]).astype(np.int32),
        output_rows=wanted,
        shared=shared,
    )


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("with_graphs", [False, True])
@pytest.mark.parametrize("min_saved", [0, 1 << 30])
def test_the_whole_path_gives_what_torch_gives(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, with_graphs: bool, min_saved: int
) -> None:
    """Both round to half precision, in other places: each is about as far from single precision as the other."""
    monkeypatch.setattr(paging, "MIN_SAVED", min_saved)
    ours, theirs = gpu_runner(checkpoint, with_graphs=with_graphs), plain_runner(checkpoint)
    exact = plain_runner(checkpoint, torch.float32)
    errors = []
    with torch.inference_mode():
        for step in random_steps(np.random.default_rng(3), 24):
            expected = exact.forward(step)
            errors.append([float((runner.forward(step).float() - expected).abs().mean()) for runner in (ours, theirs)])
    own, others = np.mean(errors, axis=0)
    assert own < 1.5 * others
    assert np.max(errors) < 0.03


@pytest.mark.usefixtures("fake")
def test_decodes_are_replayed_padded_and_all_else_is_not(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = gpu_runner(checkpoint, with_graphs=True)
    replayed: list[int] = []
    run = graphs.DecodeGraphs.run

    def watched(self: Any, batch: AttentionBatch, inputs: np.ndarray, resolve: Any) -> torch.Tensor:
        replayed.append(inputs.shape[1])
        return run(self, batch, inputs, resolve)

    monkeypatch.setattr(graphs.DecodeGraphs, "run", watched)
    decodes = []
    with torch.inference_mode():
        for step in random_steps(np.random.default_rng(4), 24):
            runner.forward(step)
            if len(step.token_ids) == len(step.qo_indptr) - 1:
                decodes.append(len(step.token_ids))
    assert replayed == decodes
    assert {1, 2, 3} == set(decodes)


@pytest.mark.usefixtures("fake")
def test_a_graph_feeds_from_the_device_what_the_host_does_not_know(checkpoint: Path) -> None:
    runner = gpu_runner(checkpoint, with_graphs=True)
    *before, step = random_steps(np.random.default_rng(5), 30)
    assert len(step.token_ids) == len(step.qo_indptr) - 1
    places = np.arange(len(step.token_ids), dtype=np.int32)[::-1]
    fed = torch.from_numpy(step.token_ids[places].astype(np.int64))
    with torch.inference_mode():
        for each in before:
            runner.forward(each)
        expected = runner.forward(step).clone()
        torch.testing.assert_close(runner.forward(replace(step, token_ids=-1 - places, fed=fed)), expected)
        assert not torch.equal(runner.forward(replace(step, token_ids=-1 - places, fed=(fed + 1) % 61)), expected)


@pytest.mark.usefixtures("fake")
def test_the_executor_gives_the_same_ahead_with_graphs_as_step_by_step_without(
    checkpoint: Path, drive_runner: Callable[[Executor], Any], entry: Any
) -> None:
    prompts = [np.random.default_rng(9).integers(0, 61, size).tolist() for size in (3, 20, 9)]
    found = []
    for with_graphs in (False, True):
        runner = gpu_runner(checkpoint, with_graphs=with_graphs)
        driver = drive_runner(Executor(runner, max_running=MOST, max_context=200, ahead=with_graphs))
        for row, prompt in enumerate(prompts):
            driver.open(row, prompt, temperature=0.7 if row else 0.0, seed=row)
        flying = [driver.launch([entry(row, prompt, 0) for row, prompt in enumerate(prompts)])]
        for i in range(20):
            flying.append(driver.launch([entry(row, [-1], len(prompt) + i) for row, prompt in enumerate(prompts)]))
        found.append([driver.gained(each).token_ids for each in flying])
    assert found[0] == found[1]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("with_graphs", [False, True])
def test_ranks_take_the_same_path(checkpoint: Path, in_ranks: Callable[..., Any], with_graphs: bool) -> None:
    """Each rounds its part of a sum to half precision, so both are about as far from single precision."""
    steps = random_steps(np.random.default_rng(6), 12)

    @torch.inference_mode()
    def computed(runner: TorchRunner) -> list[torch.Tensor]:
        return [runner.forward(step).float().clone() for step in steps]

    exact = computed(plain_runner(checkpoint, torch.float32))

    def mean_error(found: list[torch.Tensor]) -> float:
        return float(np.mean([float((one - other).abs().mean()) for one, other in zip(found, exact, strict=True)]))

    alone = mean_error(computed(gpu_runner(checkpoint, with_graphs=with_graphs)))
    for found in in_ranks(2, lambda ranks: computed(gpu_runner(checkpoint, with_graphs=with_graphs, ranks=ranks))):
        assert mean_error(found) < 1.5 * alone


def fixed_runner(path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks = ALONE) -> TorchRunner:
    monkeypatch.setattr(fixed_rows, "ROWS", 8)
    model = load_model(path, torch.float16, ranks=ranks)
    own = model.shard.config
    pool = KVPool(own, SLOTS, torch.float16)
    attention = FlashInferAttention(own, pool, torch.float16, invariant=True)
    return TorchRunner(model, pool, attention, FixedRows(Forward(model, FusedArithmetic(model, attention.kernels))))


@pytest.mark.usefixtures("fake")
def test_the_deterministic_mode_gives_what_torch_gives(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, exact = fixed_runner(checkpoint, monkeypatch), plain_runner(checkpoint, torch.float32)
    with torch.inference_mode():
        for step in random_steps(np.random.default_rng(3), 10):
            hidden, expected = ours.forward(step), exact.forward(step)
            assert (hidden.float() - expected).abs().mean() < 0.03
            assert (ours.logits(hidden) - exact.logits(expected)).abs().mean() < 0.1
            assert ours.logits(hidden[:0]).shape == (0, 61)


@pytest.mark.usefixtures("fake")
def test_the_deterministic_mode_of_two_ranks_gives_what_torch_gives(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, in_ranks: Callable[..., Any]
) -> None:
    """Each rank sums blocks of rows with the other's, so both must cut them alike."""
    steps = random_steps(np.random.default_rng(4), 8)

    def computed(ranks: Ranks) -> list[tuple[torch.Tensor, torch.Tensor]]:
        runner = fixed_runner(checkpoint, monkeypatch, ranks)
        with torch.inference_mode():
            hidden = [runner.forward(step) for step in steps]
            return [(each, runner.logits(each)) for each in hidden]

    exact = plain_runner(checkpoint, torch.float32)
    first, second = in_ranks(2, computed)
    with torch.inference_mode():
        for step, (hidden, logits), (other, none) in zip(steps, first, second, strict=True):
            expected = exact.forward(step)
            assert (hidden.float() - expected).abs().mean() < 0.03
            assert (logits - exact.logits(expected)).abs().mean() < 0.1
            assert torch.equal(hidden, other)
            assert not len(none)


def depend_on_shapes(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes matrix products depend on their number of rows, and attention on the queries that a request has."""
    linear, interpret = torch.nn.functional.linear, fake.interpret

    def other_linear(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return linear(x, *rest) + len(x) / 1000

    def other_interpret(q: torch.Tensor, cache: Any, qo_indptr: torch.Tensor, *rest: Any, **options: Any) -> Any:
        out, lse = interpret(q, cache, qo_indptr, *rest, **options)
        return out + float(qo_indptr.diff().max()) / 1000, lse

    monkeypatch.setattr(torch.nn.functional, "linear", other_linear)
    monkeypatch.setattr(fake, "interpret", other_interpret)


@pytest.mark.parametrize("deterministic", [True, False])
def test_in_deterministic_mode_numbers_do_not_depend_on_company_or_chunks(
    checkpoint: Path,
    fake: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    drive_runner: Callable[[Executor], Any],
    entry: Any,
    deterministic: bool,
) -> None:
    """Bit for bit, whatever the libraries make of shapes: the log-probabilities of a row alone, in one piece, and those
    in company, in chunks of any size. Without the mode they do depend on them."""
    runner = fixed_runner(checkpoint, monkeypatch) if deterministic else gpu_runner(checkpoint, with_graphs=False)
    depend_on_shapes(fake, monkeypatch)
    driver = drive_runner(Executor(runner, max_running=4, max_context=200))
    prompts = [np.random.default_rng(i).integers(0, 61, size).tolist() for i, size in enumerate((30, 17, 41))]
    alone = []
    for prompt in prompts:
        driver.open(0, prompt, logprobs=0)
        logprobs = [driver.prefill(0, prompt).logprobs[0].logprob]
        for i in range(4):
            logprobs.append(driver.step([entry(0, [-1], len(prompt) + i)]).logprobs[0].logprob)
        driver.close(0)
        alone.append(logprobs)
    for chunk in (5, 13):
        for row, prompt in enumerate(prompts):
            driver.open(row, prompt, logprobs=0)
        found: list[list[float]] = [[], [], []]
        known = [0, 0, 0]
        while min(map(len, found)) < 5:
            entries = []
            for row, prompt in enumerate(prompts):
                ids = prompt[known[row] :][:chunk] or [-1]
                known[row] += len(ids)
                entries.append(entry(row, ids, known[row] - len(ids), sample=known[row] >= len(prompt)))
            for row, each in enumerate(driver.step(entries).result.entries):
                found[row] += [one.logprob for one in each.logprobs]
        assert ([each[:5] for each in found] == alone) is deterministic
        for row in range(3):
            driver.close(row)


@pytest.mark.parametrize("most", [1, 2, 5, 16, 17, 64, 256, 1000])
def test_the_ladder_ends_at_the_most_and_wastes_little(most: int) -> None:
    sizes = ladder(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    assert len(sizes) <= 32
    for below, above in pairwise(sizes):
        assert above <= max(2 * below, below + 8)
