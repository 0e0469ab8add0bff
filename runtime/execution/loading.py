"""From a path and options to an executor: what computes, in which numbers, and how large the KV pool is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..errors import ModelError, UnsupportedModel
from ..kernels.sampling import load_sampler
from ..model.config import ModelConfig
from ..options import ExecutorOptions
from .executor import Executor
from .graphs import CudaCapture
from .kv_pool import KVPool, bytes_per_token, slots_that_fit
from .ranks import ALONE, Ranks
from .runner import TorchRunner
from .runner_loading import device_of, load_runner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_DTYPES = DTYPES | {"float8_e4m3fn": torch.float8_e4m3fn}


def load_executor(
    path: Path | str,
    options: ExecutorOptions,
    *,
    vocab_size: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    ranks: Ranks = ALONE,
) -> Executor:
    """Loads the model at `path` (a `.gguf` file or a Hugging Face directory) and allocates its KV pool.

    vocab_size: see `Executor`. progress: takes sentences on what takes long. ranks: who computes the model together, on
    one machine; all must be given the same options. Raises ModelError or UnsupportedModel with a sentence for the user.
    """
    where = device_of(options, ranks.rank, ranks.size)
    automatic = torch.bfloat16 if where.type == "cuda" else torch.float32
    weight_dtype = _dtype_named(options.dtype, "dtype", automatic, DTYPES)
    pool_dtype = _dtype_named(options.kv_dtype, "kv_dtype", weight_dtype, KV_DTYPES)
    if options.threads or ranks.size > 1:
        torch.set_num_threads(options.threads or max(1, torch.get_num_threads() // ranks.size))

    def make_pool(config: ModelConfig) -> KVPool:
        per_token = bytes_per_token(config, pool_dtype)
        if where.type == "cpu":
            per_token = ranks.total(per_token)  # the ranks' pools share this machine's memory
        fraction = options.kv_memory_fraction
        slots = slots_that_fit(per_token, kv_tokens=options.kv_tokens, memory_fraction=fraction, device=where)
        slots = ranks.least(slots)
        try:
            return KVPool(config, slots, pool_dtype, where)
        except (MemoryError, torch.OutOfMemoryError):
            raise ModelError(f"the system refuses the memory for a KV pool of {slots} tokens") from None

    runner, note = load_runner(
        path, make_pool, options, dtype=weight_dtype, device=where, ranks=ranks, progress=progress
    )
    limit = runner.config.max_context
    context = min(options.max_context or limit, limit, runner.pool.slots)
    on_gpu = where.type == "cuda"
    if on_gpu and isinstance(runner, TorchRunner):
        progress("warming up")
        runner.warm_up()
        if not options.deterministic:  # graphs pad to several sizes
            runner.capture_decodes(options.max_running, CudaCapture(), progress)
    sampler = None if on_gpu else load_sampler(torch.get_num_threads())
    return Executor(
        runner,
        max_running=options.max_running,
        max_context=context,
        vocab_size=vocab_size,
        sampler=sampler,
        note=note,
        ahead=on_gpu,
        ranks=ranks,
    )


def _dtype_named(name: str, option: str, automatic: torch.dtype, named: Mapping[str, torch.dtype]) -> torch.dtype:
    if name == "auto":
        return automatic
    if name not in named:
        raise UnsupportedModel(f"{option} {name!r} is not supported; there are auto, {', '.join(named)}")
    return named[name]
