"""A group of states that were forked together, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from ..errors import ProgramMisuse
from ..ir import Content, Expr
from ..running.run import Event
from ..running.variables import Gathered
from .branch import Branch

JoinMode = Literal["gather_variable", "concate_and_append"]


class Addable(Protocol):
    """What a branch shows itself as: something that can be added to."""

    def __iadd__(self, other: Any) -> Self: ...


S = TypeVar("S", bound=Addable)


class ForkGroup(Generic[S]):
    """States that were forked together; iterate over them, or index them."""

    def __init__(self, parent: Branch, branches: Sequence[Branch], states: Sequence[S]) -> None:
        """states: of the branches, in their order."""
        self._parent = parent
        self._branches = branches
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    def __getitem__(self, index: int) -> S:
        return self._states[index]

    def __setitem__(self, index: int, state: S) -> None:
        """What `forks[i] += x` ends with; nothing else may be put here."""
        if state is not self._states[index]:
            raise ProgramMisuse("A branch cannot be replaced by another state.")

    def __iadd__(self, other: Content | Callable[[int], Content]) -> ForkGroup[S]:
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
        branches' values. "concate_and_append": the parent goes on with what each branch has added, one after the other.
        """
        _check_mode(mode)
        for branch in self._branches:
            branch.wait(branch.outputs())
        self._joined(mode)

    async def ajoin(self, mode: JoinMode = "gather_variable") -> None:
        """`join` for an event loop."""
        _check_mode(mode)
        for branch in self._branches:
            await branch.awaited(branch.outputs())
        self._joined(mode)

    def _joined(self, mode: JoinMode) -> None:
        parent, branches = self._parent, self._branches
        for branch in branches:
            branch.checked_items()
        parent.run.note(Event("join", parent.name, text=mode, branches=tuple(each.name for each in branches)))
        if mode == "gather_variable":
            known = set(parent.variables)
            for name in dict.fromkeys(name for each in branches for name in each.variables if name not in known):
                parent.variables[name] = Gathered([e.variables[name] for e in branches if name in e.variables])
        else:
            for branch in branches:
                parent.take_in(branch)
        for branch in branches:
            branch.end()


def _check_mode(mode: str) -> None:
    if mode not in ("gather_variable", "concate_and_append"):
        raise ProgramMisuse(f'join takes "gather_variable" or "concate_and_append"; not {mode!r}.')
