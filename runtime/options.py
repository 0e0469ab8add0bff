"""The options of an executor, each declared once. Torch-free: the front and the command line read them too.

Whoever loads a model hands them on whole, as one record. A new option is a line here, and its use.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from .devices import DEVICES

ATTENTION_BACKENDS = ("auto", "cpu", "torch", "flashinfer")
QUANTIZATIONS = ("none", "q8_0", "q4_0")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "float8_e4m3fn")


@dataclass(frozen=True)
class Option:
    """What is declared of an option beside its name, its type and its default.

    help: of its flag, `--name`, or `--no-name` where it is true unless something is said. group: of the flags it is
    listed with; "" for a test mode, which has no flag. choices: the only values; or numbers from `least` to `most`,
    or numbers above `above` and up to `most`. metavar: what stands for its value in the help. formerly: its name in
    the release before, which is still taken.
    """

    help: str
    group: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    metavar: str = "N"
    formerly: str = ""

    def complaint(self, value: Any) -> str:
        """What is wrong with a value of the option's type, after the option's name; "" for nothing."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}; not {value!r}."
        if self.least is not None and self.most is not None and not self.least <= value <= self.most:
            return f"must be between {self.least} and {self.most}, not {value}."
        if self.above is not None and self.most is not None and not self.above < value <= self.most:
            return f"must be above {self.above:g} and at most {self.most}, not {value}."
        return ""


MODEL, MEMORY, SCHEDULING = "model and machine", "memory", "scheduling"


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is loaded and computed."""

    threads: Annotated[
        int,
        Option("CPU threads of each worker; 0: as many as its libraries choose", MODEL, least=0, most=1024),
    ] = 0
    device: Annotated[
        str,
        Option("where it computes; auto: on a GPU where there is one", MODEL, choices=DEVICES),
    ] = "auto"
    attention_backend: Annotated[
        str,
        Option(
            "what computes: compiled kernels (cpu), on a GPU flashinfer, or torch", MODEL, choices=ATTENTION_BACKENDS
        ),
    ] = "auto"  # the first of these that can
    deterministic: Annotated[
        bool,
        Option(
            "answers do not depend on what else is computed; slower on a GPU, always so with the CPU kernels", MODEL
        ),
    ] = False
    quantize: Annotated[
        str,
        Option("quantize weights, but those of a quantized .gguf file, when loading", MODEL, choices=QUANTIZATIONS),
    ] = "none"
    dtype: Annotated[
        str,
        Option("type of the weights and of the arithmetic", MODEL, choices=DTYPES),
    ] = "auto"  # float32 on the CPU, bfloat16 on a GPU
    kv_dtype: Annotated[
        str,
        Option("type of the KV pool; eight bits with flashinfer only", MODEL, choices=KV_DTYPES),
    ] = "auto"  # that of the arithmetic
    kv_tokens: Annotated[
        int,
        Option("size of the KV pool in tokens; 0: as many as fit --kv-memory-fraction", MEMORY, least=0, most=2**30),
    ] = 0
    kv_memory_fraction: Annotated[
        float,
        Option("share of the available memory for the KV pool", MEMORY, above=0.0, most=0.95, metavar="F"),
    ] = 0.3
    max_context: Annotated[
        int,
        Option("most tokens of prompt and completion together; 0: the model's own limit", MEMORY, least=0, most=2**30),
    ] = 0
    max_running: Annotated[
        int,
        Option("most sequences computed at once", SCHEDULING, least=1, most=4096),
    ] = 64


def declared(options: type[ExecutorOptions]) -> Iterator[tuple[str, Option]]:
    """The options of this kind of record by name, those it adds itself first."""
    hints = get_type_hints(options, include_extras=True)
    for name in (name for each in options.__mro__ for name in inspect.get_annotations(each)):
        yield name, next(each for each in get_args(hints[name]) if isinstance(each, Option))
