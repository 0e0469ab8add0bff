"""Where in a user's program something was asked for, so that its error can say so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class SourceLocation:
    """A line of a program: the file's path, the line's number, and the function it is in."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"line {self.line} of {Path(self.filename).name} (in {self.function})"


def calling_location() -> SourceLocation:
    """The nearest line on the stack that is not part of the frontend language itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _is_own(module: str) -> bool:
    return module == _PACKAGE or module.startswith(_PACKAGE + ".")
