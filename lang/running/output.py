"""What a step of a program gives: a value that is there now or later, or the error in its place."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProgramError
from ..history import Segment
from ..source_location import SourceLocation
from .loop import ended
from .stream import Stream


@dataclass(frozen=True)
class Outcome:
    """value: of the step's variable. segment: what the step adds to its state. meta: counts, and what else was asked
    for. reasoning: where that was separated."""

    value: str | list[str]
    segment: Segment
    meta: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""


class Output:
    """The place of a step's outcome in a state, shared by all states that were forked from there.

    name: of the variable, None for none. branch: of the state where the step was taken. text: the step as written.
    location: where that was.
    """

    def __init__(
        self, text: str, name: str | None, branch: str, location: SourceLocation, saw: Callable[[ProgramError], None]
    ) -> None:
        """saw: told of every error that is raised to the user."""
        self.text = text
        self.name = name
        self.branch = branch
        self.location = location
        self.pieces: Stream[str] = Stream()
        self.began = self.ended = time.perf_counter()
        self._saw = saw
        self._settling = threading.RLock()
        self._future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def error(self) -> BaseException | None:
        """Why the step failed; None where it did not, or has not ended."""
        return self._future.exception() if self.done else None

    def begin(self) -> None:
        """The request goes out now."""
        self.began = time.perf_counter()

    def finish(self, outcome: Outcome) -> None:
        """End with a value; a second end changes nothing."""
        with self._settling:
            if not self.done:
                self.ended = time.perf_counter()
                if not len(self.pieces):
                    self.pieces.put(outcome.segment.text)
                self._future.set_result(outcome)
                self.pieces.close()

    def fail(self, error: BaseException) -> None:
        """End with an error; a second end changes nothing."""
        with self._settling:
            if not self.done:
                self.ended = time.perf_counter()
                self._future.set_exception(error)
                self.pieces.close(error)

    def wait(self) -> None:
        """Until it is done, either way."""
        concurrent.futures.wait([self._future])

    async def ready(self) -> Outcome:
        """The outcome, for other steps: its error does not count as seen by the user."""
        await ended(self._future)
        return self._future.result()

    async def settled(self) -> None:
        """`wait` for an event loop."""
        await ended(self._future)

    def outcome(self) -> Outcome:
        """The outcome of what is done, for the user. Raises a copy of its error, which counts as seen then."""
        error = self.error
        if error is None:
            return self._future.result()
        if isinstance(error, ProgramError):
            self._saw(error)
            raise error.again()
        raise error
