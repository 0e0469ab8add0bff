"""What computes: the kernels where they can, torch where they cannot, and never the other one without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime import backends
from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.executor import Executor, load_executor


def loaded(path: Path, **options: Any) -> Executor:
    return load_executor(path, max_running=1, kv_tokens=64, **options)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backends, "library_path", lambda: tmp_path / "libsapwood_kernels.so")


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


def test_quantizing_makes_weights_smaller_and_needs_the_kernels(tiny_llama: Path, smollm2_path: Path) -> None:
    plain, quantized = loaded(tiny_llama), loaded(tiny_llama, quantize="q8_0")
    assert quantized.runner.weight_bytes < 0.5 * plain.runner.weight_bytes
    assert "Q8_0" in quantized.runner.dtype
    with pytest.raises(UnsupportedModel, match="quantize q4_0 has nothing to do"):
        loaded(smollm2_path, quantize="q4_0")
    with pytest.raises(UnsupportedModel, match=r"quantize needs the cpu backend.* torch was asked for"):
        loaded(tiny_llama, quantize="q8_0", attention_backend="torch")
