"""Chooses what computes a model here: the compiled CPU kernels, or torch, on a GPU with FlashInfer's attention.

It never falls back without saying so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..attention.flashinfer import FlashInferAttention, why_not
from ..attention.torch import TorchAttention
from ..devices import DEVICES, require_gpu
from ..errors import UnsupportedModel
from ..kernels.bindings import KernelsMissing, Library, library_path
from ..kernels.decoder import NativeDecoder, NotForKernels
from ..kernels.loading import load_weights
from ..model.config import ModelConfig
from ..model.fixed_rows import FixedRows
from ..model.forward import Forward
from ..model.fused import FusedArithmetic
from ..model.layers.quantized_linear import weight_kernels
from ..model.loading import load_model
from ..model.read_config import read_config
from ..model.shard import Shard
from ..options import ExecutorOptions
from ..weights.quantization import scheme_of
from .kv_pool import KVPool
from .ranks import ALONE, Ranks
from .runner import Runner, TorchRunner

CPU = torch.device("cpu")
NOT_DETERMINISTIC = "deterministic needs the cpu backend, or flashinfer on a GPU, and neither is used"
BACKENDS = (NativeDecoder.backend, TorchAttention.name, FlashInferAttention.name)


def device_of(options: ExecutorOptions, rank: int = 0, ranks: int = 1) -> torch.device:
    """The device that is asked for; "auto": a GPU where there is one and neither backend nor quantize is the CPU's own.

    Each of several ranks has a GPU to itself. Raises UnsupportedModel for a name that is none, and where there is no
    GPU, too few for the ranks, or no torch for it.
    """
    name = options.device
    if name not in DEVICES:
        raise UnsupportedModel(f"there is no device {name!r}; there are {', '.join(DEVICES)}")
    if name == "cpu":
        return CPU
    on_cpu = options.attention_backend == NativeDecoder.backend or options.quantize != "none"
    if name == "auto":
        return _gpu(rank, ranks) if torch.cuda.is_available() and not on_cpu else CPU
    require_gpu()
    if not torch.cuda.is_available():
        raise UnsupportedModel(
            f"device cuda cannot be used: torch {torch.__version__} is built without CUDA, or for another driver. "
            "Install a CUDA build of torch, or use device cpu."
        )
    return _gpu(rank, ranks)


def _gpu(rank: int, ranks: int) -> torch.device:
    if ranks > 1 and ranks > (count := torch.cuda.device_count()):
        raise UnsupportedModel(f"tp {ranks} needs as many GPUs, and there are {count} here; or use device cpu")
    return torch.device("cuda", rank)


def load_runner(
    path: Path | str,
    make_pool: Callable[[ModelConfig], KVPool],
    options: ExecutorOptions,
    *,
    dtype: torch.dtype,
    device: torch.device = CPU,
    ranks: Ranks = ALONE,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Runner, str]:
    """The model at `path` on the backend asked for, and why "auto" did not take the best one ("" where it did).

    "auto" takes the kernels on the CPU, and FlashInfer on a GPU, where they can run this. dtype: of the arithmetic, and
    of torch's weights; the kernels have float32 only. Only they quantize. Results that do not depend on the batch: the
    kernels' always, FlashInfer's at a cost, torch's attention is refused. ranks: who shares the model; the kernels
    share none. make_pool: given a configuration with this rank's heads. progress: takes a sentence on quantized
    weights. Raises ModelError or UnsupportedModel.
    """
    backend, quantize = options.attention_backend, options.quantize
    if backend not in ("auto", *BACKENDS):
        raise UnsupportedModel(f"there is no attention backend {backend!r} here; there are auto, {', '.join(BACKENDS)}")
    if device.type == "cuda":
        return _gpu_runner(path, make_pool, options, dtype, device, ranks, progress)
    if backend == FlashInferAttention.name:
        raise UnsupportedModel("the flashinfer backend needs a GPU (device cuda); here there are auto, cpu and torch")
    reason = ""
    if backend in ("auto", NativeDecoder.backend):
        try:
            if ranks.size > 1:
                raise NotForKernels(f"the kernels do not divide a model, and tp is {ranks.size}")
            return _native_runner(path, make_pool, options, dtype, progress), ""
        except (KernelsMissing, NotForKernels) as error:
            reason = str(error)
            if backend != "auto":
                raise UnsupportedModel(f"the cpu backend cannot be used: {reason}") from None
    if quantize != "none":
        raise UnsupportedModel(f"quantize needs the cpu backend, which is not used: {reason or 'torch was asked for'}")
    if options.deterministic:
        raise UnsupportedModel(f"{NOT_DETERMINISTIC}: {reason or 'torch was asked for'}")
    model = load_model(path, dtype, ranks=ranks, progress=progress)
    own = model.shard.config
    pool = make_pool(own)
    return TorchRunner(model, pool, TorchAttention(own.within(options.max_context), pool)), reason


def _gpu_runner(
    path: Path | str,
    make_pool: Callable[[ModelConfig], KVPool],
    options: ExecutorOptions,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
    progress: Callable[[str], None],
) -> tuple[Runner, str]:
    backend, quantize, deterministic = options.attention_backend, options.quantize, options.deterministic
    if backend == NativeDecoder.backend or quantize != "none":
        asked = "the cpu backend" if quantize == "none" else f"quantize {quantize}"
        raise UnsupportedModel(f"{asked} computes on the CPU; use device cpu")
    if deterministic and ranks.size > 2:
        raise UnsupportedModel(
            "deterministic cannot be had with tp above 2: the order in which NCCL adds depends on the batch"
        )
    reason = why_not(Shard.of(read_config(path), ranks.rank, ranks.size).config, dtype)
    if reason and backend == FlashInferAttention.name:
        raise UnsupportedModel(f"the flashinfer backend cannot be used: {reason}")
    if deterministic and (reason or backend == TorchAttention.name):
        raise UnsupportedModel(f"{NOT_DETERMINISTIC}: {reason or 'torch was asked for'}")
    kernels = weight_kernels(scheme_of(Path(path)), dtype, device)
    model = load_model(path, dtype, device, ranks, kernels=kernels, progress=progress)
    own = model.shard.config.within(options.max_context)
    pool = make_pool(own)
    if reason or backend == TorchAttention.name:
        return TorchRunner(model, pool, TorchAttention(own, pool)), reason if backend == "auto" else ""
    attention = FlashInferAttention(own, pool, dtype, invariant=deterministic)
    forward = Forward(model, FusedArithmetic(model, attention.kernels))
    return TorchRunner(model, pool, attention, FixedRows(forward) if deterministic else forward), ""


def _native_runner(
    path: Path | str,
    make_pool: Callable[[ModelConfig], KVPool],
    options: ExecutorOptions,
    dtype: torch.dtype,
    progress: Callable[[str], None],
) -> Runner:
    if dtype != torch.float32:
        raise NotForKernels(f"its arithmetic is float32, not {str(dtype).removeprefix('torch.')}")
    library = Library(library_path())
    threads = torch.get_num_threads()
    how = "" if options.quantize == "none" else options.quantize
    config, weights = load_weights(path, library, threads, how, progress, max_context=options.max_context)
    return NativeDecoder(config, weights, make_pool(config), library, threads)
