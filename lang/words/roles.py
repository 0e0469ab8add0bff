"""Messages as expressions and as context managers."""

from __future__ import annotations

from collections.abc import Callable

from ..ir import Concat, Content, Expr, Role, RoleBegin, RoleEnd, flatten


def in_role(role: Role, expr: Content) -> Concat:
    """The parts of a whole message."""
    return Concat((RoleBegin(role), *flatten(expr), RoleEnd(role)))


class RoleBlock:
    """A context manager around what is added to a message; after an exception the message stays open."""

    def __init__(self, add: Callable[[Expr], object], role: Role) -> None:
        self._add = add
        self._role: Role = role

    def __enter__(self) -> None:
        self._add(RoleBegin(self._role))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is None:
            self._add(RoleEnd(self._role))
