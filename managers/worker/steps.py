"""The worker's steps: plans are executed in order, and answered in order.

Where the executor can, a step is launched while the device still computes the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...runtime.step import StepPlan, StepResult
from .grammar_loader import GrammarLoader

if TYPE_CHECKING:
    from ...runtime.execution.executor import Executor
    from ...runtime.execution.launched import Launched


class Steps:
    """Not for use from several threads."""

    def __init__(
        self,
        executor: Executor,
        grammars: GrammarLoader,
        answer: Callable[[StepResult], None],
        dropped_frames: Callable[[], int],
    ) -> None:
        """answer: sends a result. dropped_frames: how many there are by now, which results report."""
        self._executor = executor
        self._grammars = grammars
        self._answer = answer
        self._dropped_frames = dropped_frames
        self._flying: Launched | None = None
        self._mark = 0.0  # since when the step that flies has the device to itself

    @property
    def is_waiting(self) -> bool:
        """Whether a step is under way whose answer is still due."""
        return self._flying is not None

    def run(self, plan: StepPlan) -> None:
        """Executes a plan; answers it now, or with a later call of `run` or `settle`."""
        matchers = {row.row: self._grammars.start(row) for row in plan.opened if row.grammar}
        if not self._executor.starts_ahead(plan, matchers):
            self.settle()
        if self._flying is None:
            self._mark = time.perf_counter()
        launched = self._executor.launch(plan, matchers)
        self.settle()
        self._flying = launched
        if launched.is_known:
            self.settle()

    def settle(self, *, only_if_over: bool = False) -> None:
        """Answers the step that is under way, if there is one, waiting for the device unless `only_if_over`."""
        if self._flying is None or (only_if_over and not self._flying.is_over):
            return
        launched, self._flying = self._flying, None
        result = launched.result()
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self._answer(replace(result, seconds=seconds, dropped_frames=self._dropped_frames()))
