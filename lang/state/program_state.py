"""`ProgramState`: what a program has made so far. A program adds to it, reads variables from it, and forks it.

Adding never waits: a step starts as soon as the steps before it have ended, in whatever state they were taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, overload

from ..errors import ProgramCancelled, ProgramError, ProgramMisuse, UnknownVariable
from ..history import messages_of
from ..ir import Concat, Content, Role
from ..running.loop import loop_thread
from ..running.program_steps import resolved
from ..running.report import Report
from ..running.stream import Stream
from ..running.text_stream import text_stream
from ..running.variables import Fixed, Scope
from ..words.roles import RoleBlock, in_role
from .branch import Branch
from .fork_group import ForkGroup


class ProgramState:
    """The state of a program, or of one branch of it. Made by running a program, and by `fork`.

    `s += x` adds text and expressions; `s["name"]` is a variable's value, waiting for it where need be. Both raise
    ProgramError where a step that they depend on failed. In an `async def` program use `aget`, `atext`, … instead.
    """

    def __init__(self, branch: Branch) -> None:
        self.ret_value: Any = None
        self._branch = branch

    # --- adding ----------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Content) -> ProgramState:
        """Add text, an expression, or a list of them. Raises ProgramMisuse or Unsupported, and then adds nothing."""
        self._branch.add(other)
        return self

    def __add__(self, other: object) -> NoReturn:
        raise ProgramMisuse("A state is added to in place; write `s += …`, not `s = s + …`.")

    @overload
    def system(self, expr: None = None) -> RoleBlock: ...
    @overload
    def system(self, expr: Content) -> Concat: ...

    def system(self, expr: Content | None = None) -> RoleBlock | Concat:
        """A system message of this content; without one, a context manager in which it is written."""
        return self._in_role("system", expr)

    @overload
    def user(self, expr: None = None) -> RoleBlock: ...
    @overload
    def user(self, expr: Content) -> Concat: ...

    def user(self, expr: Content | None = None) -> RoleBlock | Concat:
        """A user's message of this content; without one, a context manager in which it is written."""
        return self._in_role("user", expr)

    @overload
    def assistant(self, expr: None = None) -> RoleBlock: ...
    @overload
    def assistant(self, expr: Content) -> Concat: ...

    def assistant(self, expr: Content | None = None) -> RoleBlock | Concat:
        """An assistant's message of this content; without one, a context manager in which it is written."""
        return self._in_role("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is added within is the value of the variable `name`, afterwards."""
        start = len(self._branch.items)
        yield
        self._branch.variables[name] = Scope(self._branch.items.snapshot()[start:])

    # --- branching -------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1) -> ForkGroup[ProgramState]:
        """`size` states that go on from here side by side, with this one's variables. What they share is computed once,
        without waiting for it: a fork costs nothing. Raises ProgramMisuse for less than one."""
        if not isinstance(size, int) or size < 1:
            raise ProgramMisuse(f"fork needs a whole number of at least 1, not {size!r}.")
        branches = self._branch.fork(size)
        return ForkGroup(self._branch, branches, [ProgramState(each) for each in branches])

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A fork of one, as a context manager that joins it at the end: its new variables are then here, in lists."""
        group = self.fork(1)
        yield group[0]
        group.join()

    # --- reading ---------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """A variable's value: text, or a list where there are several. Raises UnknownVariable."""
        self._branch.watch(name)
        variable = self._branch.variable(name)
        self._branch.wait(list(variable.outputs()))
        return variable.value()

    async def aget(self, name: str) -> Any:
        """`s[name]` for an event loop."""
        await self._branch.awatch(name)
        variable = self._branch.variable(name)
        await self._branch.awaited(list(variable.outputs()))
        return variable.value()

    def __setitem__(self, name: str, value: Any) -> None:
        self._branch.variables[name] = Fixed(value)

    def __contains__(self, name: str) -> bool:
        """Whether the variable has a value already; never waits."""
        return name in self._branch.variables and all(each.done for each in self._branch.variables[name].outputs())

    def meta(self, name: str) -> Any:
        """What is known about a variable's generation, a dict: prompt_tokens, cached_tokens, completion_tokens,
        finish_reason, and logprobs where they were asked for; after a `select` also the scores by choice."""
        self._branch.watch(name)
        variable = self._branch.variable(name)
        self._branch.wait(list(variable.outputs()))
        return variable.meta()

    get_meta_info = meta

    def text(self) -> str:
        """All of it as text, with what the model's chat template puts around messages, where that is known."""
        self._branch.watch()
        self._branch.wait(self._branch.outputs())
        return loop_thread().call(self._text())

    async def atext(self) -> str:
        """`text` for an event loop."""
        await self._branch.awatch()
        await self._branch.awaited(self._branch.outputs())
        return await loop_thread().acall(self._text())

    def messages(self) -> list[dict[str, str]]:
        """The messages that have ended, as dicts of role and content."""
        self._branch.watch()
        self._branch.wait(self._branch.outputs())
        history = loop_thread().call(resolved(self._branch.checked_items()))
        return [{"role": each.role, "content": each.content} for each in messages_of(history)[0] if each.closed]

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, piece by piece, or that of a variable. Whole where the run does not stream."""
        self._branch.raise_error()
        return self._shown(self._pieces(var_name))

    def text_async_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for an event loop."""
        self._branch.raise_error()
        return self._ashown(self._pieces(var_name))

    def sync(self) -> None:
        """Wait until every step of this state has ended. Raises ProgramError where one failed."""
        self._branch.watch()
        self._branch.wait(self._branch.outputs())
        self._branch.checked_items()

    async def async_sync(self) -> None:
        """`sync` for an event loop."""
        await self._branch.awatch()
        await self._branch.awaited(self._branch.outputs())
        self._branch.checked_items()

    @property
    def error(self) -> BaseException | None:
        """What ended the program, where it did not end well; None while it runs."""
        return self._branch.error

    def cancel(self) -> None:
        """End the whole run: open requests are aborted, and what the program still asks for raises ProgramCancelled."""
        self._branch.run.cancel()

    def report(self) -> Report:
        """What the whole run has computed, reused and generated, so far."""
        return Report.of(self._branch.run)

    def __str__(self) -> str:
        return f"ProgramState({self.text()})"

    def __repr__(self) -> str:
        return f"<ProgramState {self._branch.name!r} of {self._branch.run.program!r}, {len(self._branch.items)} items>"

    # --- inside ----------------------------------------------------------------------------------------------------

    def _in_role(self, role: Role, expr: Content | None) -> RoleBlock | Concat:
        return RoleBlock(self.__iadd__, role) if expr is None else in_role(role, expr)

    async def _text(self) -> str:
        return await self._branch.run.backend.text(await resolved(self._branch.checked_items()))

    def _pieces(self, name: str | None) -> Stream[str]:
        branch = self._branch
        return text_stream(branch.items, branch.variables, name, branch.run.backend)

    def _shown(self, pieces: Stream[str]) -> Iterator[str]:
        try:
            yield from pieces
            return
        except ProgramError as error:
            self._branch.run.saw(error)
            raise
        except (ProgramCancelled, UnknownVariable) as error:
            cut_short = error
        self._branch.raise_error()  # what ended the program, where that cut its text short
        raise cut_short

    async def _ashown(self, pieces: Stream[str]) -> AsyncIterator[str]:
        try:
            async for piece in pieces:
                yield piece
            return
        except ProgramError as error:
            self._branch.run.saw(error)
            raise
        except (ProgramCancelled, UnknownVariable) as error:
            cut_short = error
        self._branch.raise_error()
        raise cut_short
