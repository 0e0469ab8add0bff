"""The command line's options and their help. It must stay cheap to import: neither torch nor aiohttp.

Defaults are those of `EngineConfig` and `GenerateRequest`, and only they check ranges; here options get their names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from ...runtime.devices import DEVICES
from ..front.config import (
    ATTENTION_BACKENDS,
    DTYPES,
    KV_DTYPES,
    LOG_LEVELS,
    QUANTIZATIONS,
    SCHEDULES,
    TOOL_STYLES,
    EngineConfig,
)
from ..wire.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
CACHE = "~/.cache/sapwood, or $SAPWOOD_HOME"


def add_model_options(parser: argparse.ArgumentParser, log_level: str) -> None:
    """Which model, and what it runs on."""
    group = parser.add_argument_group("model and machine")
    sources = "the alias smollm2, a .gguf file, a Hugging Face directory, or a hub id"
    _option(group, "model", "NAME", f"{sources}; smollm2 is fetched once, into {CACHE}")
    _option(group, "tp", "N", "tensor parallelism: divide the model over so many worker processes, with a part each")
    _option(group, "threads", "N", "CPU threads of each worker; 0: as many as its libraries choose")
    _option(group, "device", None, "where it computes; auto: on a GPU where there is one", DEVICES)
    _option(
        group,
        "attention_backend",
        None,
        "what computes: compiled kernels (cpu), on a GPU flashinfer, or torch",
        ATTENTION_BACKENDS,
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="answers do not depend on what else is computed; slower on a GPU, always so with the CPU kernels",
    )
    _option(
        group, "quantize", None, "quantize weights, but those of a quantized .gguf file, when loading", QUANTIZATIONS
    )
    _option(group, "dtype", None, "type of the weights and of the arithmetic", DTYPES)
    _option(group, "kv_dtype", None, "type of the KV pool; eight bits with flashinfer only", KV_DTYPES)
    _option(group, "tool_format", None, "how the model writes tool calls; auto: as its template shows", TOOL_STYLES)
    group.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=log_level,
        help=f"least important event to log (default: {log_level})",
    )
    group = parser.add_argument_group("memory")
    _option(group, "kv_tokens", "N", "size of the KV pool in tokens; 0: as many as fit --kv-memory-fraction")
    _option(group, "kv_memory_fraction", "F", "share of the available memory for the KV pool")
    _option(group, "max_context", "N", "most tokens of prompt and completion together; 0: the model's own limit")


_SWITCHES = {
    "prefix_cache": "share nothing between requests",
    "speculation": "do not guess tokens ahead where a text was seen before (answers are the same either way)",
    "jump_forward": "sample the tokens that a grammar forces one by one",
}


def add_scheduling_options(parser: argparse.ArgumentParser) -> None:
    """How requests share the machine."""
    group = parser.add_argument_group("scheduling")
    _option(group, "chunk_tokens", "N", "token budget of one step; a long prompt is computed in chunks of this size")
    _option(group, "max_running", "N", "most sequences computed at once")
    _option(group, "max_queue", "N", "most sequences that wait; beyond it requests get a 503")
    _option(group, "schedule", None, "order of the queue: longest cached prefix first (ageing), or arrival", SCHEDULES)
    for name, what in _SWITCHES.items():
        group.add_argument(f"--no-{name.replace('_', '-')}", dest=name, action="store_false", help=what)
    group.add_argument("--no-drafts", dest="speculation", action=_OldSwitch, help=argparse.SUPPRESS)


class _OldSwitch(argparse.Action):
    """The old name of `--no-speculation`, taken with a note for one release."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        print(f"{parser.prog}: {option} is now called {option_name('no_' + self.dest)}", file=sys.stderr)
        setattr(namespace, self.dest, False)


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: str) -> None:
    """How tokens are chosen. max_tokens: what its default is, in words."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"most tokens of a completion (default: {max_tokens})"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token (default: 1.0)")
    group.add_argument("--top-k", type=int, metavar="K", help="choose among the K likeliest tokens (default: off)")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="choose among the likeliest with this total probability"
    )
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens less likely than P times the likeliest")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: repeat less (default: off)")
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same text (default: a new one each time)")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, by the names of `GenerateRequest`."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def config_of(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's configuration. Raises ConfigError that names the option as it is typed."""
    given = {name: getattr(arguments, name) for name in EngineConfig.__struct_fields__ if hasattr(arguments, name)}
    try:
        return EngineConfig(**given)
    except ConfigError as error:
        raise ConfigError(as_typed(str(error), given)) from None


def as_typed(message: str, names: Iterable[str]) -> str:
    """The message with the field that it opens with named as an option: top_p must … -> --top-p must …"""
    name = next((name for name in names if message.startswith(name)), "")
    return option_name(name) + message.removeprefix(name) if name else message


def option_name(field: str) -> str:
    """max_tokens -> --max-tokens"""
    return "--" + field.replace("_", "-")


def _option(group: Any, name: str, metavar: str | None, text: str, choices: tuple[str, ...] | None = None) -> None:
    """An option of the same name, type and default as a field of EngineConfig."""
    default = next(f.default for f in msgspec.structs.fields(EngineConfig) if f.name == name)
    kind = {"choices": choices} if choices else {"metavar": metavar, "type": type(default)}
    group.add_argument(option_name(name), default=default, help=f"{text} (default: {default})", **kind)
