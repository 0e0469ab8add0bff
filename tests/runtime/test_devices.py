"""Which device computes: what cannot be had is refused with a sentence, and FlashInfer is not imported for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.runtime import devices
from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution import runner_loading
from sapwood.runtime.execution.ranks import Ranks
from sapwood.runtime.execution.runner_loading import CPU, device_of
from sapwood.runtime.execution.transfer import Fetched, indices_to_device, to_device
from sapwood.runtime.options import ExecutorOptions
from tests.runtime.executors import executor_of

CUDA = torch.device("cuda", 0)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"device cuda cannot be used: .*Use device cpu, or auto"):
        executor_of(tmp_path / "no model", max_running=1, device="cuda")


@no_gpu
def test_a_driver_without_torch_for_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_why_no_gpu", lambda: "")
    with pytest.raises(UnsupportedModel, match=r"torch .* is built without CUDA"):
        device_of(ExecutorOptions(device="cuda"))


def test_auto_takes_a_gpu_unless_something_asked_for_is_the_cpus_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of(ExecutorOptions(device="auto")) == CUDA
    assert device_of(ExecutorOptions(device="auto", attention_backend="torch")) == CUDA
    assert device_of(ExecutorOptions(device="auto", attention_backend="cpu")) == CPU
    assert device_of(ExecutorOptions(device="auto", quantize="q8_0")) == CPU
    assert device_of(ExecutorOptions(device="cpu")) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(ExecutorOptions(device="auto")) == CPU
    with pytest.raises(UnsupportedModel, match="no device 'tpu'; there are auto, cpu, cuda"):
        device_of(ExecutorOptions(device="tpu"))


def test_every_rank_has_a_gpu_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(ExecutorOptions(device="auto"), rank, 2).index for rank in range(2)] == [0, 1]
    with pytest.raises(UnsupportedModel, match="tp 3 needs as many GPUs, and there are 2 here; or use device cpu"):
        device_of(ExecutorOptions(device="auto"), 0, 3)
    assert device_of(ExecutorOptions(device="cpu"), 2, 3) == CPU


def test_ranks_whose_sums_depend_on_the_batch_are_not_called_deterministic(tmp_path: Path) -> None:
    class Three(Ranks):
        size = 3

    with pytest.raises(UnsupportedModel, match="deterministic cannot be had with tp above 2"):
        runner_loading.load_runner(
            tmp_path,
            lambda _: pytest.fail("it was loaded"),
            ExecutorOptions(deterministic=True),
            dtype=torch.bfloat16,
            device=CUDA,
            ranks=Three(),
        )


@pytest.mark.parametrize(("backend", "quantize"), [("cpu", "none"), ("auto", "q4_0")])
def test_what_computes_on_the_cpu_is_refused_on_a_gpu(tmp_path: Path, backend: str, quantize: str) -> None:
    with pytest.raises(UnsupportedModel, match="computes on the CPU; use device cpu"):
        runner_loading.load_runner(
            tmp_path,
            lambda _: pytest.fail("it was loaded"),
            ExecutorOptions(attention_backend=backend, quantize=quantize),
            dtype=torch.bfloat16,
            device=CUDA,
        )


def test_flashinfer_is_refused_on_the_cpu(tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModel, match="flashinfer backend needs a GPU"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, attention_backend="flashinfer")


def test_deterministic_is_refused_where_the_batch_would_show(tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"deterministic needs the cpu backend, .*torch was asked for"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, attention_backend="torch", deterministic=True)
    with pytest.raises(UnsupportedModel, match=r"deterministic needs .*: its arithmetic is float32, not bfloat16"):
        executor_of(tiny_llama, max_running=1, kv_tokens=64, dtype="bfloat16", deterministic=True)
    executor = executor_of(tiny_llama, max_running=1, kv_tokens=64, deterministic=True)
    assert executor.runner.backend == "cpu"


def test_eight_bit_keys_and_values_are_flashinfers(tiny_llama: Path) -> None:
    for backend in ("torch", "cpu", "auto"):
        with pytest.raises(UnsupportedModel, match=r"no KV pool of torch\.float8_e4m3fn"):
            executor_of(tiny_llama, max_running=1, kv_tokens=64, kv_dtype="float8_e4m3fn", attention_backend=backend)


def test_loading_a_model_on_the_cpu_does_not_import_flashinfer(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "flashinfer.py").write_text("raise RuntimeError('imported')")
    code = (
        "import sys\n"
        "from sapwood.runtime.execution.loading import load_executor\n"
        "from sapwood.runtime.options import ExecutorOptions\n"
        f"load_executor({str(tiny_llama)!r}, ExecutorOptions(kv_tokens=64, attention_backend='torch'))\n"
        "assert 'flashinfer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"], check=True)


def test_arrays_travel_together_and_come_back() -> None:
    first, second = indices_to_device([np.array([3, 1], np.int32), np.zeros(0, np.int32)], CPU)
    assert (first.tolist(), first.dtype, len(second)) == ([3, 1], torch.int64, 0)
    assert Fetched(to_device(np.array([2.5]), CPU)).wait().tolist() == [2.5]
