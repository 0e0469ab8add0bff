"""The kinds of variables that a state can have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from ..errors import ProgramMisuse
from ..ir import Text
from .output import Output


class Variable(ABC):
    """Its value is there once all its outputs are done."""

    @abstractmethod
    def outputs(self) -> Iterator[Output]: ...

    @abstractmethod
    def value(self) -> Any:
        """Raises what went wrong in any of the outputs."""

    def meta(self) -> Any:
        raise ProgramMisuse("This variable was not generated; it has no meta.")


class Fixed(Variable):
    """What the program itself assigned."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def outputs(self) -> Iterator[Output]:
        return iter(())

    def value(self) -> Any:
        return self._value


class Generated(Variable):
    """The value of a `gen` or a `select`."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def outputs(self) -> Iterator[Output]:
        yield self.output

    def value(self) -> str | list[str]:
        value = self.output.outcome().value
        return list(value) if isinstance(value, list) else value

    def meta(self) -> dict[str, Any]:
        return dict(self.output.outcome().meta)


class Reasoning(Generated):
    """The reasoning that was separated from a `gen`."""

    def value(self) -> str:
        return self.output.outcome().reasoning


class Scope(Variable):
    """The text of a stretch of a state, the edges of roles left out."""

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = items

    def outputs(self) -> Iterator[Output]:
        return (item for item in self._items if isinstance(item, Output))

    def value(self) -> str:
        return "".join(self._text(item) for item in self._items)

    def _text(self, item: Any) -> str:
        if isinstance(item, Output):
            return item.outcome().segment.text
        return item.text if isinstance(item, Text) else ""


class Gathered(Variable):
    """One variable of several branches, in their order; a branch without it contributes nothing."""

    def __init__(self, variables: list[Variable]) -> None:
        self._variables = variables

    def outputs(self) -> Iterator[Output]:
        for each in self._variables:
            yield from each.outputs()

    def value(self) -> list[Any]:
        return [each.value() for each in self._variables]

    def meta(self) -> list[Any]:
        return [each.meta() for each in self._variables]
