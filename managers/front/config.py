"""The options of an engine, checked in one place. Whatever is accepted here is acted on somewhere."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec

from ...constrained.near_names import probably_meant
from ...runtime.devices import DEVICES
from ...runtime.text.chat.tool_formats import TOOL_FORMATS
from ..wire.errors import ConfigError, InvalidRequest
from .bodies import struct_from

SCHEDULES = ("lpm", "fcfs")
ATTENTION_BACKENDS = ("auto", "cpu", "torch", "flashinfer")
QUANTIZATIONS = ("none", "q8_0", "q4_0")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "float8_e4m3fn")
TOOL_STYLES = ("auto", *TOOL_FORMATS)
LOG_LEVELS = ("debug", "info", "warning", "error")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine runs a model. Construction raises ConfigError for a value that is not allowed.

    model: the alias "smollm2", a .gguf file, a Hugging Face directory, or a hub id.
    tp: over how many processes (on GPUs: over how many GPUs) the model's weights and its KV pool are divided.
    threads: CPU threads of each worker; 0 leaves the choice to torch.
    kv_tokens: size of the KV pool in tokens; 0 means as many as fit `kv_memory_fraction` of the available memory.
    chunk_tokens: the token budget of a step, and so the largest prefill chunk.
    max_running, max_queue: sequences computed at once, and sequences that may wait behind them.
    max_context: most tokens of prompt + completion; 0 means what the model was trained for.
    device: "cpu", "cuda" (one NVIDIA GPU), or "auto": a GPU where there is one.
    attention_backend: what computes: on the CPU "cpu" (the compiled kernels) or "torch", on a GPU "flashinfer" or
        "torch"; "auto": the first of each where they can.
    deterministic: answers do not depend on what else is computed at the time. The CPU kernels' never do; on a GPU it
        costs speed, and torch's attention is refused.
    dtype, kv_dtype: of the weights and the arithmetic, and of the KV pool; "auto" is float32 on the CPU, bfloat16 on a
        GPU. "float8_e4m3fn" is for the KV pool of flashinfer only.
    quantize: "q8_0" or "q4_0": the kernels quantize plain (unquantized) weights to this when they load them, and those
        of a quantized Hugging Face directory, which would be float32 otherwise.
    prefix_cache: keep prefixes and share them.
    speculation: guess tokens that followed the same text before, where that is faster; answers do not change.
    jump_forward: tokens that a grammar forces are not sampled one by one.
    schedule: order of the queue: "lpm" (longest cached prefix first, with ageing) or "fcfs" (arrival).
    tool_format: how the model writes tool calls: "hermes", "smollm2", "llama3", or "auto": as its chat template shows.
    audit, poison_freed: test modes: prove the books after every step; fill freed slots with NaN.
    """

    model: str = "smollm2"
    tp: int = 1
    threads: int = 0
    kv_tokens: int = 0
    kv_memory_fraction: float = 0.3
    chunk_tokens: int = 256
    max_running: int = 64
    max_queue: int = 1024
    max_context: int = 0
    prefix_cache: bool = True
    speculation: bool = True
    jump_forward: bool = True
    schedule: str = "lpm"
    device: str = "auto"
    deterministic: bool = False
    attention_backend: str = "auto"
    quantize: str = "none"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    tool_format: str = "auto"
    log_level: str = "info"
    audit: bool = False
    poison_freed: bool = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must name a model.")
        for name, lowest, highest in _RANGES:
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ConfigError(f"{name} must be between {lowest} and {highest}, not {value}.")
        if not 0.0 < self.kv_memory_fraction <= 0.95:
            raise ConfigError(f"kv_memory_fraction must be above 0 and at most 0.95, not {self.kv_memory_fraction}.")
        for name, allowed in _CHOICES:
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}; not {value!r}.")

    @property
    def capacity(self) -> int:
        """Most sequences that may be open (running or waiting) at once."""
        return self.max_running + self.max_queue


_TEST_MODES = ("audit", "poison_freed")
_OLD_NAMES = {"drafts": "speculation"}  # taken with a warning, for one release
_RANGES = (
    ("tp", 1, 64),
    ("threads", 0, 1024),
    ("kv_tokens", 0, 2**30),
    ("chunk_tokens", 1, 2**20),
    ("max_running", 1, 4096),
    ("max_queue", 1, 2**20),
    ("max_context", 0, 2**30),
)
_CHOICES = (
    ("schedule", SCHEDULES),
    ("attention_backend", ATTENTION_BACKENDS),
    ("quantize", QUANTIZATIONS),
    ("dtype", DTYPES),
    ("kv_dtype", KV_DTYPES),
    ("device", DEVICES),
    ("tool_format", TOOL_STYLES),
    ("log_level", LOG_LEVELS),
)


def config_from(options: dict[str, Any]) -> EngineConfig:
    """The configuration that these keyword arguments describe; raises ConfigError naming an unknown or mistyped one."""
    for old, name in _OLD_NAMES.items():
        if old in options and name not in options:
            warnings.warn(f"The option {old!r} is now called {name!r}.", DeprecationWarning, stacklevel=3)
            options = {name if given == old else given: value for given, value in options.items()}
    known = sorted(EngineConfig.__struct_fields__)
    if unknown := next((name for name in options if name not in known), None):
        shown = [name for name in known if name not in _TEST_MODES]
        near = probably_meant(unknown, shown)
        hint = f"; did you mean {near!r}?" if near else f". Allowed are: {', '.join(shown)}."
        raise ConfigError(f"Unknown option {unknown!r}{hint}")
    try:
        return struct_from(options, EngineConfig)
    except InvalidRequest as error:
        raise ConfigError(str(error).replace("field", "option")) from None
