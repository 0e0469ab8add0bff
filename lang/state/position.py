"""Where in a conversation a state stands, and whether what comes next may come there."""

from __future__ import annotations

from dataclasses import dataclass

from ..backends.base import Backend
from ..errors import ProgramMisuse
from ..ir import Expr, Gen, GenOptions, Role, RoleBegin, RoleEnd, Select, SeparateReasoning, Text


@dataclass(frozen=True)
class Position:
    """role: whose message is open; None for none. begun: whether there is something in it (or outside) already."""

    role: Role | None = None
    begun: bool = False

    def after(self, parts: tuple[Expr, ...], backend: Backend, defaults: GenOptions) -> Position:
        """The position behind these parts.

        Raises ProgramMisuse where roles are nested or end unbegun, Unsupported for what the backend cannot do.
        """
        position = self
        for part in parts:
            position = position._behind(part, backend, defaults)
        return position

    def _behind(self, part: Expr, backend: Backend, defaults: GenOptions) -> Position:
        if isinstance(part, RoleBegin):
            if self.role is not None:
                raise ProgramMisuse(f"Roles cannot be nested: {part.role} begins within {self.role}.")
            return Position(part.role)
        if isinstance(part, RoleEnd):
            if self.role != part.role:
                open_now = f"{self.role} is" if self.role else "no role is"
                raise ProgramMisuse(f"{part.role} ends, but {open_now} open.")
            return Position()
        if isinstance(part, Select):
            backend.check_select(part, self.role)
        elif not isinstance(part, Text):
            gen = part.gen if isinstance(part, SeparateReasoning) else part
            assert isinstance(gen, Gen)
            backend.check_gen(gen, gen.options.over(defaults), self.role, self.begun)
        return Position(self.role, begun=True)


START = Position()
