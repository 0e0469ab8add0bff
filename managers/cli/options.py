"""The command line's options and their help. It must stay cheap to import: neither torch nor aiohttp.

Engine options derive from `managers.wire.options`, sampling ones from `front.requests.request_fields`; only there are
ranges checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ...runtime.declaration import Field, declared, plain_types
from ...runtime.options import MEMORY, MODEL, SCHEDULING, Option
from ..front.requests.request_fields import CompletionFields
from ..wire.errors import ConfigError, Path
from ..wire.options import OPTIONS, EngineConfig

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


def add_model_options(parser: argparse.ArgumentParser, log_level: str) -> None:
    """Which model, and what it runs on. log_level: its default."""
    _add_group(parser, MODEL, EngineConfig(log_level=log_level))
    _add_group(parser, MEMORY, EngineConfig())


def add_scheduling_options(parser: argparse.ArgumentParser) -> None:
    """How requests share the machine."""
    _add_group(parser, SCHEDULING, EngineConfig())


def _add_group(parser: argparse.ArgumentParser, title: str, defaults: EngineConfig) -> None:
    """The flags of the options that are declared for this group."""
    group = parser.add_argument_group(title)
    for name, option in OPTIONS.items():
        if option.group == title:
            _add_option(group, name, option, getattr(defaults, name))


def _add_option(group: Any, name: str, option: Option, default: Any) -> None:
    if isinstance(default, bool):
        kind: dict[str, Any] = {"action": "store_false" if default else "store_true", "help": option.help}
        prefix = "no_" if default else ""
    elif isinstance(default, tuple):
        kind, prefix, default = {"action": "append", "help": option.help, "metavar": option.metavar}, "", None
    else:
        value = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
        kind = {"type": type(default), "help": f"{option.help} (default: {default})", **value}
        prefix = ""
    group.add_argument(option_name(prefix + name), dest=name, default=default, **kind)
    if option.formerly:
        group.add_argument(option_name(prefix + option.formerly), dest=name, action=_Renamed, default=default)


class _Renamed(argparse.Action):
    """The flag that an option had in the release before: taken, with a note."""

    def __init__(self, option_strings: list[str], dest: str, default: Any) -> None:
        nargs = 0 if isinstance(default, bool) else None
        super().__init__(option_strings, dest, nargs, None, default, type(default), help=argparse.SUPPRESS)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        prefix = "no_" if self.default is True else ""
        print(f"{parser.prog}: {option} is now called {option_name(prefix + self.dest)}", file=sys.stderr)
        setattr(namespace, self.dest, not self.default if isinstance(self.default, bool) else values)


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: str) -> None:
    """How tokens are chosen. max_tokens: what its default is, in words."""
    group = parser.add_argument_group("sampling")
    defaults = {field.name: field.default for field in msgspec.structs.fields(CompletionFields)}
    types = plain_types(CompletionFields)
    for name, field in _sampling_fields().items():
        unset = max_tokens if name == "max_tokens" else field.unset or defaults[name]
        if name == "stop":
            text = f"{field.help}; may be given several times"
            group.add_argument(option_name(name), action="append", metavar=field.metavar, help=text)
        else:
            text = f"{field.help} (default: {unset})"
            group.add_argument(option_name(name), type=types[name], metavar=field.metavar, help=text)


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, by the names of `GenerateRequest`."""
    return {name: value for name in _sampling_fields() if (value := getattr(arguments, name)) is not None}


def _sampling_fields() -> dict[str, Field]:
    return {name: field for name, field in declared(CompletionFields).items() if field.metavar is not None}


def config_of(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's configuration. Raises ConfigError that names the option as it is typed."""
    typed = {name: getattr(arguments, name, None) for name in OPTIONS}
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in typed.items() if v is not None}
    try:
        return EngineConfig(**given)
    except ConfigError as error:
        raise error.renamed(as_typed(given)) from None


def as_typed(given: Iterable[str]) -> Callable[[Path], Path]:
    """How errors name these fields: as the options that were typed. top_p must … -> --top-p must …"""
    names = {*given}
    return lambda path: (option_name(str(path[0])), *path[1:]) if path[0] in names else path


def option_name(field: str) -> str:
    """max_tokens -> --max-tokens"""
    return "--" + field.replace("_", "-")
