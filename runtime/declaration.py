"""What a struct says of its fields beside their types and defaults, and other structs that are made of it.

It must import nothing heavy: the command line and the language are made of declarations before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec


@dataclass(frozen=True)
class Field:
    """Stands in a field's annotation: `top_p: Annotated[float, Field("…", lowest=0.0, highest=1.0)] = 1.0`.

    help: what it does, in a phrase that continues its name. unset: what its default means, in words ("off").
    lowest, highest: the range of a number, or of a mapping's values.
    token_ids: its items (a mapping's keys) are token ids of the model's vocabulary.
    elsewhere: what other servers call it. openai: the OpenAI endpoints take it under this name, too.
    language: `gen` and a program's run take it. metavar: what stands for its value in the command line's help; the
    command line has it only with one. kernels: the kernels' sampler reads it, a number.
    """

    help: str
    lowest: float | None = None
    highest: float | None = None
    token_ids: bool = False
    unset: str = ""
    elsewhere: tuple[str, ...] = ()
    openai: bool = True
    language: bool = True
    metavar: str | None = None
    kernels: bool = False


@cache
def declared(struct: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields that have a `Field`, by name, in the struct's order."""
    return {name: field for name, hint in _hints(struct).items() if (field := _field(hint)) is not None}


@cache
def plain_types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The declared fields' types, without what may be said of them and without None."""
    hints = _hints(struct)
    return {name: _plain(get_args(hints[name])[0]) for name in declared(struct)}


class Optionals(msgspec.Struct, frozen=True):
    """A struct made by `with_nulls`; to a type checker, one with any fields."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def with_nulls(name: str, struct: type[msgspec.Struct], shown: Callable[[Field], bool]) -> type[Optionals]:
    """A struct of those declared fields that `shown` holds for, each None unless given."""
    hints = _hints(struct)
    fields = [
        (each, Annotated[get_args(hints[each])[0] | None, field], None)
        for each, field in declared(struct).items()
        if shown(field)
    ]
    made = msgspec.defstruct(name, fields, bases=(Optionals,), frozen=True, kw_only=True, forbid_unknown_fields=True)
    return cast(type[Optionals], made)


def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _field(hint: Any) -> Field | None:
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((each for each in extras if isinstance(each, Field)), None)


def _plain(hint: Any) -> Any:
    choices = [each for each in get_args(hint) if each is not type(None)]
    return choices[0] if type(None) in get_args(hint) and len(choices) == 1 else hint
