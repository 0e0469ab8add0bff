"""`ProgramState`: what a program has said so far. A program adds to it, reads variables from it, and forks it.

Adding never waits: a step starts as soon as the steps before it have ended, in whatever state they were taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, overload

from .branches import ForkGroup
from .errors import ProgramCancelled, ProgramError, ProgramMisuse, UnknownVariable
from .history import messages_of
from .ir import Concat, Content, Expr, Gen, Role, RoleBegin, RoleEnd, Select, SeparateReasoning, Text, flatten
from .place import caller_place
from .position import START, Position
from .report import Report
from .running.feed import Feed
from .running.loop import loop_thread
from .running.output import Output
from .running.run import Event, Run
from .running.steps import Item, generation, resolved, selection
from .running.streaming import pump, when_known
from .variables import Fixed, Generated, Reasoning, Span, Variable
from .words.roles import RoleBlock, in_role

REASONING = "_reasoning_content"  # appended to the name of a variable whose reasoning was separated


class ProgramState:
    """The state of a program, or of one branch of it. Made by running a program, and by `fork`.

    `s += x` adds text and expressions; `s["name"]` is a variable's value, waiting for it where need be. Both raise
    ProgramError where a step that they depend on failed. In an `async def` program use `aget`, `atext`, … instead.
    """

    def __init__(
        self,
        run: Run,
        branch: str = "main",
        forked: Sequence[Item] | None = None,
        variables: dict[str, Variable] | None = None,
        position: Position = START,
    ) -> None:
        """forked: of a branch, what was there before it."""
        self.ret_value: Any = None
        self._run = run
        self._branch = branch
        self._items: Feed[Item] = Feed(forked or ())
        run.adopt(self._items)
        self._variables = dict(variables or {})
        self._position = position
        self._forked_at = None if forked is None else len(forked)
        self._children = 0
        self._error: BaseException | None = None

    # --- adding ----------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Content) -> ProgramState:
        """Add text, an expression, or a list of them. Raises ProgramMisuse or Unsupported, and then adds nothing."""
        parts = flatten(other)
        self._run.check_open()
        if self._items.closed:
            raise ProgramMisuse("This branch has been joined; nothing can be added to it any more.")
        position = self._position.after(parts, self._run.backend, self._run.defaults)
        for part in parts:
            self._add(part)
        self._position = position
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
        start = len(self._items)
        yield
        self._variables[name] = Span(self._items.snapshot()[start:])

    # --- branching -------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1) -> ForkGroup:
        """`size` states that go on from here side by side, with this one's variables. What they share is computed once,
        without waiting for it: a fork costs nothing. Raises ProgramMisuse for less than one."""
        if not isinstance(size, int) or size < 1:
            raise ProgramMisuse(f"fork needs a whole number of at least 1, not {size!r}.")
        items = self._items.snapshot()
        branches = tuple(f"{self._branch}.{self._children + i}" for i in range(size))
        self._children += size
        self._run.note(Event("fork", self._branch, branches=branches))
        return ForkGroup(
            self,
            [ProgramState(self._run, name, items, self._variables, self._position) for name in branches],
        )

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A fork of one, as a context manager that joins it at the end: its new variables are then here, in lists."""
        group = self.fork(1)
        yield group[0]
        group.join()

    # --- reading ---------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """A variable's value: text, or a list where there are several. Raises UnknownVariable."""
        self._watch(name)
        variable = self._variable(name)
        self._wait(list(variable.outputs()))
        return variable.value()

    async def aget(self, name: str) -> Any:
        """`s[name]` for an event loop."""
        await self._awatch(name)
        variable = self._variable(name)
        await self._awaited(list(variable.outputs()))
        return variable.value()

    def __setitem__(self, name: str, value: Any) -> None:
        self._variables[name] = Fixed(value)

    def __contains__(self, name: str) -> bool:
        """Whether the variable has a value already; never waits."""
        return name in self._variables and all(each.done for each in self._variables[name].outputs())

    def meta(self, name: str) -> Any:
        """What is known about a variable's generation, a dict: prompt_tokens, cached_tokens, completion_tokens,
        finish_reason, and logprobs where they were asked for; after a `select` also the scores by choice."""
        self._watch(name)
        variable = self._variable(name)
        self._wait(list(variable.outputs()))
        return variable.meta()

    get_meta_info = meta

    def text(self) -> str:
        """All of it as text, with what the model's chat template puts around messages, where that is known."""
        self._watch()
        self._wait(self._outputs())
        return loop_thread().call(self._text())

    async def atext(self) -> str:
        """`text` for an event loop."""
        await self._awatch()
        await self._awaited(self._outputs())
        return await loop_thread().acall(self._text())

    def messages(self) -> list[dict[str, str]]:
        """The messages that have ended, as dicts of role and content."""
        self._watch()
        self._wait(self._outputs())
        history = loop_thread().call(resolved(self._checked_items()))
        return [{"role": each.role, "content": each.content} for each in messages_of(history)[0] if each.closed]

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, piece by piece, or that of a variable. Whole where the run does not stream."""
        self._raise_error()
        return self._shown(pump(self._items, self._variables, var_name, self._run.backend))

    def text_async_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for an event loop."""
        self._raise_error()
        return self._ashown(pump(self._items, self._variables, var_name, self._run.backend))

    def sync(self) -> None:
        """Wait until every step of this state has ended. Raises ProgramError where one failed."""
        self._watch()
        self._wait(self._outputs())
        self._checked_items()

    async def async_sync(self) -> None:
        """`sync` for an event loop."""
        await self._awatch()
        await self._awaited(self._outputs())
        self._checked_items()

    @property
    def error(self) -> BaseException | None:
        """What ended the program, where it did not end well; None while it runs."""
        return self._error

    def cancel(self) -> None:
        """End the whole run: open requests are aborted, and what the program still asks for raises ProgramCancelled."""
        self._run.cancel()

    def report(self) -> Report:
        """What the whole run has computed, reused and generated, so far."""
        return Report.of(self._run)

    def __str__(self) -> str:
        return f"ProgramState({self.text()})"

    def __repr__(self) -> str:
        return f"<ProgramState {self._branch!r} of {self._run.program!r}, {len(self._items)} items>"

    # --- inside ----------------------------------------------------------------------------------------------------

    def _add(self, part: Expr) -> None:
        if isinstance(part, Text):
            self._run.note(Event("text", self._branch, part.text))
            self._items.put(part)
        elif isinstance(part, RoleBegin | RoleEnd):
            self._run.note(Event("begin" if isinstance(part, RoleBegin) else "end", self._branch, part.role))
            self._items.put(part)
        else:
            self._step(part)

    def _step(self, part: Expr) -> None:
        run, before = self._run, self._items.snapshot()
        step = part.gen if isinstance(part, SeparateReasoning) else part
        assert isinstance(step, Gen | Select)
        output = Output(step.title, step.name, self._branch, caller_place(), run.saw)
        if isinstance(step, Select):
            work = selection(run.backend, before, step, output)
        else:
            tags = part.tags if isinstance(part, SeparateReasoning) else None
            options = step.options.over(run.defaults)
            work = generation(run.backend, before, options, output, stream=run.stream, tags=tags)
        run.start(output, work)
        if step.name is not None:
            self._variables[step.name] = Generated(output)
            if isinstance(part, SeparateReasoning):
                self._variables[step.name + REASONING] = Reasoning(output)
        self._items.put(output)

    def _in_role(self, role: Role, expr: Content | None) -> RoleBlock | Concat:
        return RoleBlock(self.__iadd__, role) if expr is None else in_role(role, expr)

    def _variable(self, name: str) -> Variable:
        self._raise_error()
        variable = self._variables.get(name)
        if variable is None:
            known = f"it has {', '.join(map(repr, self._variables))}" if self._variables else "it has none yet"
            raise UnknownVariable(f"This state has no variable {name!r}; {known}.")
        return variable

    @property
    def _is_watched(self) -> bool:
        """Only the program's own state leaves it while it runs, not those of its branches."""
        return self._forked_at is None and self._run.is_watched

    def _watch(self, name: str | None = None) -> None:
        """Outside of a program that runs: wait until it has set this variable, or has ended."""
        if self._is_watched:
            loop_thread().call(when_known(self._items, self._variables, name))

    async def _awatch(self, name: str | None = None) -> None:
        if self._is_watched:
            await loop_thread().acall(when_known(self._items, self._variables, name))

    def _outputs(self) -> list[Output]:
        return [item for item in self._items.snapshot() if isinstance(item, Output)]

    def _wait(self, outputs: list[Output]) -> None:
        self._run.check_may_block(outputs)
        for output in outputs:
            output.wait()

    async def _awaited(self, outputs: list[Output]) -> None:
        for output in outputs:
            await output.settled()

    def _checked_items(self) -> tuple[Item, ...]:
        """The items, all of which have ended; raises the error of one that failed."""
        self._raise_error()
        items = self._items.snapshot()
        for item in items:
            if isinstance(item, Output):
                item.outcome()
        return items

    async def _text(self) -> str:
        return await self._run.backend.text(await resolved(self._checked_items()))

    def _raise_error(self) -> None:
        if isinstance(self._error, ProgramError):
            raise self._error.again()
        if self._error is not None:
            raise self._error

    def _shown(self, pieces: Feed[str]) -> Iterator[str]:
        try:
            yield from pieces
            return
        except ProgramError as error:
            self._run.saw(error)
            raise
        except (ProgramCancelled, UnknownVariable) as error:
            cut_short = error
        self._raise_error()  # what ended the program, where that cut its text short
        raise cut_short

    async def _ashown(self, pieces: Feed[str]) -> AsyncIterator[str]:
        try:
            async for piece in pieces:
                yield piece
            return
        except ProgramError as error:
            self._run.saw(error)
            raise
        except (ProgramCancelled, UnknownVariable) as error:
            cut_short = error
        self._raise_error()
        raise cut_short

    def _end(self, error: BaseException | None = None) -> None:
        """Nothing is added any more."""
        self._error = error
        self._items.close(error)

    def _take_in(self, child: ProgramState) -> None:
        """Add what a branch has said since its fork, token for token."""
        if child._position.role != self._position.role:
            raise ProgramMisuse("A branch can only be appended where the same role is open as in the branch.")
        for item in child._items.snapshot()[child._forked_at or 0 :]:
            self._items.put(item)
            self._position = Position(self._position.role, begun=True)
