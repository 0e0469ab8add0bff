"""What can go wrong in a program, beside what a request can answer with (`managers.wire.errors`)."""

from __future__ import annotations

from ..runtime.errors import SapwoodError
from .source_location import SourceLocation


class ProgramError(SapwoodError):
    """A step of a program failed; `__cause__` is why. The message names the step, and the line that asked for it.

    It is raised wherever the step's value is used, by every step that needs it, and out of `run`.
    """

    def __init__(
        self, step: str, place: SourceLocation, cause: BaseException, origin: ProgramError | None = None
    ) -> None:
        super().__init__(f"{step} at {place} failed: {type(cause).__name__}: {cause}")
        self.step = step
        self.place = place
        self.origin = origin or self
        self.__cause__ = cause

    def again(self) -> ProgramError:
        """A copy to raise: an exception that is raised in several places would mix up their tracebacks."""
        cause = self.__cause__
        assert cause is not None
        return ProgramError(self.step, self.place, cause, self.origin)


class ProgramCancelled(SapwoodError):
    """The program's run was cancelled, or another step's error ended it; its open requests were aborted."""


class ProgramMisuse(SapwoodError):
    """The program says something that has no meaning: nested roles, no choices, a step after the end."""


class Unsupported(SapwoodError):
    """The backend cannot do what the program asks for; nothing was sent."""


class UnknownVariable(SapwoodError, KeyError):
    """The state has no variable of this name."""

    __str__ = Exception.__str__  # KeyError would show the quoted repr of the sentence


class BackendError(SapwoodError):
    """A backend cannot be reached, or answered with something that is no answer."""
