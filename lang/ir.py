"""What a program adds to its state, as plain immutable values: text, generation, selection, and the edges of roles.

Nothing here runs anything; `state` gives these their meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..managers.front.requests.request_fields import CompletionFields
from ..runtime.declaration import with_nulls
from .errors import ProgramMisuse

Role = Literal["system", "user", "assistant"]


class Expr:
    """Something that can be added to a state; `+` joins it with text and with other expressions."""

    def __add__(self, other: str | Expr) -> Concat:
        return Concat((*flatten(self), *flatten(other)))

    def __radd__(self, other: str) -> Concat:
        return Concat((*flatten(other), *flatten(self)))

    def __str__(self) -> str:
        """Refused: in an f-string an expression would become the text that it is written as."""
        raise TypeError('An expression is not text, so no f-string or str() can hold it; write "Say: " + gen("a").')

    def __format__(self, form: str) -> str:
        return str(self)


Content = str | Expr | Sequence["str | Expr"]


@dataclass(frozen=True)
class Concat(Expr):
    """Expressions one after the other; never nested."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Text(Expr):
    """Text of the program's own."""

    text: str


@dataclass(frozen=True)
class RoleBegin(Expr):
    """The start of a message."""

    role: Role


@dataclass(frozen=True)
class RoleEnd(Expr):
    """The end of a message."""

    role: Role


_Declared = with_nulls("_Declared", CompletionFields, lambda field: field.language)


class GenOptions(_Declared, frozen=True, kw_only=True):
    """How to generate; None is "as the run says", and where that says nothing either, as the backend does by default.

    The names and meanings are those of `managers.front.requests.request_fields.GenerateRequest`; lists are tuples.
    """

    def given(self) -> dict[str, Any]:
        """The options that are not None."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def over(self, defaults: GenOptions) -> GenOptions:
        """These options, with `defaults` in place of what is None."""
        return msgspec.structs.replace(defaults, **self.given())


@dataclass(frozen=True)
class Gen(Expr):
    """Let the model go on; the value is what it said."""

    name: str | None
    options: GenOptions

    @property
    def title(self) -> str:
        """The step in short, for errors and reports."""
        return f"gen({self.name!r})" if self.name else "gen()"


@dataclass(frozen=True)
class Select(Expr):
    """Let the model choose; the value is the choice that `method` prefers."""

    name: str | None
    choices: tuple[str, ...]
    method: str

    @property
    def title(self) -> str:
        """The step in short, for errors and reports."""
        return f"select({self.name!r})" if self.name else "select()"


@dataclass(frozen=True)
class SeparateReasoning(Expr):
    """A generation whose reasoning goes into a variable of its own."""

    gen: Gen
    tags: tuple[str, str]


def flatten(content: Content) -> tuple[Expr, ...]:
    """The parts of what is added to a state, in order. Raises ProgramMisuse for what cannot be added."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    if isinstance(content, Concat):
        return content.parts
    if isinstance(content, Expr):
        return (content,)
    if isinstance(content, list | tuple):
        return tuple(part for each in content for part in flatten(each))
    kind = "None" if content is None else f"a value of type {type(content).__name__}"
    hint = f" Write str({content!r}) for its text." if isinstance(content, int | float) else ""
    raise ProgramMisuse(f"{kind} cannot be added to a state; text, expressions and lists of them can.{hint}")
