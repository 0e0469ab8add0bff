"""Branches of a program: a group of states that were forked together, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from .errors import ProgramMisuse
from .ir import Content, Expr
from .running.run import Event
from .variables import Gathered

if TYPE_CHECKING:
    from .state import ProgramState

JoinMode = Literal["gather_variable", "concate_and_append"]


class ForkGroup:
    """Branches that were forked together; iterate over them, or index them."""

    def __init__(self, parent: ProgramState, states: list[ProgramState]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __getitem__(self, index: int) -> ProgramState:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """What `forks[i] += x` ends with; nothing else may be put here."""
        if state is not self._states[index]:
            raise ProgramMisuse("A branch cannot be replaced by another state.")

    def __iadd__(self, other: Content | Callable[[int], Content]) -> ForkGroup:
        """Add the same to every branch, or `other(i)` to branch i, or the items of a list of as many."""
        if isinstance(other, list | tuple) and len(other) != len(self._states):
            raise ProgramMisuse(f"{len(other)} items cannot be added to {len(self._states)} branches one by one.")
        for i, state in enumerate(self._states):
            if isinstance(other, list | tuple):
                state += other[i]
            elif isinstance(other, str | Expr) or not callable(other):
                state += other
            else:
                state += other(i)
        return self

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Wait for the branches and end them. Raises ProgramError where a step of one failed.

        "gather_variable": each variable that the parent does not have becomes one of its own: the list of the
        branches' values. "concate_and_append": the parent goes on with what each branch has said, one after the other.
        """
        _check_mode(mode)
        for state in self._states:
            state._wait(state._outputs())
        self._joined(mode)

    async def ajoin(self, mode: JoinMode = "gather_variable") -> None:
        """`join` for an event loop."""
        _check_mode(mode)
        for state in self._states:
            await state._awaited(state._outputs())
        self._joined(mode)

    def _joined(self, mode: JoinMode) -> None:
        parent = self._parent
        for state in self._states:
            state._checked_items()
        parent._run.note(
            Event("join", parent._branch, text=mode, branches=tuple(each._branch for each in self._states))
        )
        if mode == "gather_variable":
            known = set(parent._variables)
            names = dict.fromkeys(name for state in self._states for name in state._variables if name not in known)
            for name in names:
                found = [state._variables[name] for state in self._states if name in state._variables]
                parent._variables[name] = Gathered(found)
        else:
            for state in self._states:
                parent._take_in(state)
        for state in self._states:
            state._end()


def _check_mode(mode: str) -> None:
    if mode not in ("gather_variable", "concate_and_append"):
        raise ProgramMisuse(f'join takes "gather_variable" or "concate_and_append"; not {mode!r}.')
