"""One branch of a program's run: the items it is made of, its variables, and the steps that it starts.

It never waits by itself: a step starts as soon as the steps before it have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ProgramError, ProgramMisuse, UnknownVariable
from ..ir import Content, Expr, Gen, RoleBegin, RoleEnd, Select, SeparateReasoning, Text, flatten
from ..running.loop import loop_thread
from ..running.output import Output
from ..running.program_steps import Item, generation, selection
from ..running.run import Event, Run
from ..running.stream import Stream
from ..running.text_stream import when_known
from ..running.variables import Generated, Reasoning, Variable
from ..source_location import calling_location
from .position import START, Position

REASONING = "_reasoning_content"  # appended to the name of a variable whose reasoning was separated


class Branch:
    """`variables` by name. `error` is what ended the program, where it did not end well."""

    def __init__(
        self,
        run: Run,
        name: str = "main",
        forked: Sequence[Item] | None = None,
        variables: dict[str, Variable] | None = None,
        position: Position = START,
    ) -> None:
        """forked: what was there before it; None for the program's own."""
        self.run = run
        self.name = name
        self.items: Stream[Item] = Stream(forked or ())
        run.adopt(self.items)
        self.variables = dict(variables or {})
        self.error: BaseException | None = None
        self._position = position
        self._forked_at = None if forked is None else len(forked)
        self._children = 0

    # --- adding ----------------------------------------------------------------------------------------------------

    def add(self, content: Content) -> None:
        """Add text, an expression, or a list of them. Raises ProgramMisuse or Unsupported, and then adds nothing."""
        parts = flatten(content)
        self.run.check_open()
        if self.items.closed:
            raise ProgramMisuse("This branch has been joined; nothing can be added to it any more.")
        position = self._position.after(parts, self.run.backend, self.run.defaults)
        for part in parts:
            self._add(part)
        self._position = position

    def fork(self, size: int) -> list[Branch]:
        """Branches that go on from here, with its variables."""
        items = self.items.snapshot()
        names = tuple(f"{self.name}.{self._children + i}" for i in range(size))
        self._children += size
        self.run.note(Event("fork", self.name, branches=names))
        return [Branch(self.run, name, items, self.variables, self._position) for name in names]

    def take_in(self, child: Branch) -> None:
        """Add what a branch has added since its fork, token for token."""
        if child._position.role != self._position.role:
            raise ProgramMisuse("A branch can only be appended where the same role is open as in the branch.")
        for item in child.items.snapshot()[child._forked_at or 0 :]:
            self.items.put(item)
            self._position = Position(self._position.role, begun=True)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing is added any more."""
        self.error = error
        self.items.close(error)

    # --- reading ---------------------------------------------------------------------------------------------------

    def variable(self, name: str) -> Variable:
        """The variable of this name. Raises UnknownVariable, or what ended the program."""
        self.raise_error()
        variable = self.variables.get(name)
        if variable is None:
            known = f"it has {', '.join(map(repr, self.variables))}" if self.variables else "it has none yet"
            raise UnknownVariable(f"This state has no variable {name!r}; {known}.")
        return variable

    def watch(self, name: str | None = None) -> None:
        """Outside of a program that runs: wait until it has set this variable, or has ended."""
        if self._is_watched:
            loop_thread().call(when_known(self.items, self.variables, name))

    async def awatch(self, name: str | None = None) -> None:
        """`watch` for an event loop."""
        if self._is_watched:
            await loop_thread().acall(when_known(self.items, self.variables, name))

    def outputs(self) -> list[Output]:
        """The outputs of its steps, and of those before its fork."""
        return [item for item in self.items.snapshot() if isinstance(item, Output)]

    def wait(self, outputs: list[Output]) -> None:
        """Until all of them are done. Raises ProgramMisuse where that would block an event loop."""
        self.run.check_may_block(outputs)
        for output in outputs:
            output.wait()

    async def awaited(self, outputs: list[Output]) -> None:
        """`wait` for an event loop."""
        for output in outputs:
            await output.settled()

    def checked_items(self) -> tuple[Item, ...]:
        """The items, all of which have ended; raises the error of one that failed."""
        self.raise_error()
        items = self.items.snapshot()
        for item in items:
            if isinstance(item, Output):
                item.outcome()
        return items

    def raise_error(self) -> None:
        """Raise what ended the program, if something did."""
        if isinstance(self.error, ProgramError):
            raise self.error.again()
        if self.error is not None:
            raise self.error

    # --- inside ----------------------------------------------------------------------------------------------------

    @property
    def _is_watched(self) -> bool:
        """Only the program's own state leaves it while it runs, not those of its branches."""
        return self._forked_at is None and self.run.is_watched

    def _add(self, part: Expr) -> None:
        if isinstance(part, Text):
            self.run.note(Event("text", self.name, part.text))
            self.items.put(part)
        elif isinstance(part, RoleBegin | RoleEnd):
            self.run.note(Event("begin" if isinstance(part, RoleBegin) else "end", self.name, part.role))
            self.items.put(part)
        else:
            self._step(part)

    def _step(self, part: Expr) -> None:
        run, before = self.run, self.items.snapshot()
        step = part.gen if isinstance(part, SeparateReasoning) else part
        assert isinstance(step, Gen | Select)
        output = Output(step.title, step.name, self.name, calling_location(), run.saw)
        if isinstance(step, Select):
            work = selection(run.backend, before, step, output)
        else:
            tags = part.tags if isinstance(part, SeparateReasoning) else None
            options = step.options.over(run.defaults)
            work = generation(run.backend, before, options, output, stream=run.stream, tags=tags)
        run.start(output, work)
        if step.name is not None:
            self.variables[step.name] = Generated(output)
            if isinstance(part, SeparateReasoning):
                self.variables[step.name + REASONING] = Reasoning(output)
        self.items.put(output)
