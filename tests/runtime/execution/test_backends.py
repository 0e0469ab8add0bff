"""What computes: the kernels where they can, torch where they cannot, and never the other one without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution import runner_loading
from sapwood.runtime.execution.executor import Executor
from tests.runtime.executors import executor_of


def loaded(path: Path, **options: Any) -> Executor:
    return executor_of(path, max_running=1, kv_tokens=64, **options)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner_loading, "library_path", lambda: tmp_path / "libsapwood_kernels.so")


def test_auto_takes_the_kernels_and_has_nothing_to_say(tiny_llama: Path) -> None:
    executor = loaded(tiny_llama)
    assert (executor.runner.backend, executor.note) == ("cpu", "")


@pytest.mark.usefixtures("no_library")
def test_without_a_compiled_library_torch_computes_and_says_so(tiny_llama: Path) -> None:
    executor = loaded(tiny_llama)
    assert executor.runner.backend == "torch"
    assert "the kernel library cannot be loaded" in executor.note


@pytest.mark.usefixtures("no_library")
def test_the_kernels_asked_for_by_name_are_refused_where_they_are_missing(tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModel, match="the cpu backend cannot be used: the kernel library cannot be loaded"):
        loaded(tiny_llama, attention_backend="cpu")


def test_another_arithmetic_is_torchs(tiny_llama: Path) -> None:
    executor = loaded(tiny_llama, dtype="bfloat16")
    assert executor.runner.backend == "torch"
    assert "float32, not bfloat16" in executor.note
    with pytest.raises(UnsupportedModel, match="float32, not bfloat16"):
        loaded(tiny_llama, dtype="bfloat16", attention_backend="cpu")


SIZES: dict[str, Any] = {  # of random models
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    """A random Mistral whose layers have a window of 20 tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    MistralForCausalLM(MistralConfig(**SIZES, sliding_window=20)).save_pretrained(tmp_path)
    return tmp_path


def test_a_window_that_may_matter_is_torchs(windowed: Path) -> None:
    executor = loaded(windowed, max_context=21)
    assert executor.runner.backend == "torch"
    assert "the kernels do not have sliding windows, and this model (mistral) has one of 20 tokens" in executor.note
    with pytest.raises(UnsupportedModel, match=r"the cpu backend cannot be used: .* with max_context 20 or less"):
        loaded(windowed, attention_backend="cpu")


def test_a_window_that_holds_every_sequence_is_nothing_to_the_kernels(windowed: Path) -> None:
    executor = loaded(windowed, max_context=20)
    assert (executor.runner.backend, executor.note, executor.max_context) == ("cpu", "", 20)


def test_what_else_the_kernels_lack_is_torchs_too(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16)).save_pretrained(tmp_path)
    executor = loaded(tmp_path)
    assert executor.runner.backend == "torch"
    assert "MLPs gated by gelu_tanh, which this model (gemma2) needs" in executor.note


def test_a_part_that_the_kernels_have_no_place_for_is_not_left_out(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).save_pretrained(tmp_path)
    executor = loaded(tmp_path)
    assert executor.runner.backend == "torch"
    assert "the kernels have no place for k_norm, which qwen3 models have" in executor.note


def test_quantizing_makes_weights_smaller_and_needs_the_kernels(tiny_llama: Path, smollm2_path: Path) -> None:
    plain, quantized = loaded(tiny_llama), loaded(tiny_llama, quantize="q8_0")
    assert quantized.runner.weight_bytes < 0.5 * plain.runner.weight_bytes
    assert "Q8_0" in quantized.runner.dtype
    with pytest.raises(UnsupportedModel, match="quantize q4_0 has nothing to do"):
        loaded(smollm2_path, quantize="q4_0")
    with pytest.raises(UnsupportedModel, match=r"quantize needs the cpu backend.* torch was asked for"):
        loaded(tiny_llama, quantize="q8_0", attention_backend="torch")
