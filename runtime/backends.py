"""Chooses what computes a model here: the compiled CPU kernels, or torch. It never falls back without saying so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from .attention import registry
from .errors import UnsupportedModel
from .kernels.decoder import NativeDecoder, NotForKernels
from .kernels.loading import load_weights
from .kernels.native import KernelsMissing, Library, library_path
from .kv_pool import KVPool
from .model.config import ModelConfig
from .model.loading import load_model
from .ranks import ALONE, Ranks
from .runner import Runner, TorchRunner

BACKENDS = (NativeDecoder.backend, *registry.BACKENDS)


def load_runner(
    path: Path | str,
    make_pool: Callable[[ModelConfig], KVPool],
    *,
    dtype: torch.dtype,
    backend: str = "auto",
    quantize: str = "none",
    ranks: Ranks = ALONE,
) -> tuple[Runner, str]:
    """The model at `path` on the backend of that name, and why "auto" did not take the kernels ("" where it did).

    backend: "cpu" (the kernels), "torch", or "auto": the kernels where they can run this. dtype: of the arithmetic, and
    of torch's weights; the kernels have float32 only. quantize: "none", "q8_0" or "q4_0", for the kernels only.
    ranks: who shares the model; the kernels share none. make_pool: given a configuration with this rank's heads.
    Raises ModelError or UnsupportedModel.
    """
    if backend not in ("auto", *BACKENDS):
        raise UnsupportedModel(f"there is no attention backend {backend!r} here; there are auto, {', '.join(BACKENDS)}")
    reason = ""
    if backend in ("auto", NativeDecoder.backend):
        try:
            if ranks.size > 1:
                raise NotForKernels(f"the kernels do not divide a model, and tp is {ranks.size}")
            return _native_runner(path, make_pool, dtype, quantize), ""
        except (KernelsMissing, NotForKernels) as error:
            reason = str(error)
            if backend != "auto":
                raise UnsupportedModel(f"the cpu backend cannot be used: {reason}") from None
    if quantize != "none":
        raise UnsupportedModel(f"quantize needs the cpu backend, which is not used: {reason or 'torch was asked for'}")
    model = load_model(path, dtype, ranks)
    pool = make_pool(model.shard.config)
    attention = registry.backend_named(backend)(model.shard.config, pool)
    return TorchRunner(model, pool, attention), reason


def _native_runner(
    path: Path | str, make_pool: Callable[[ModelConfig], KVPool], dtype: torch.dtype, quantize: str
) -> Runner:
    if dtype != torch.float32:
        raise NotForKernels(f"its arithmetic is float32, not {str(dtype).removeprefix('torch.')}")
    library = Library(library_path())
    threads = torch.get_num_threads()
    config, weights = load_weights(path, library, threads, "" if quantize == "none" else quantize)
    return NativeDecoder(config, weights, make_pool(config), library, threads)
