"""The worker's steps: plans are executed in order, and answered in order.

Where the executor can, a step is launched while the device still computes the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...runtime.records import TopLogprobs, pack_ids
from ..wire.steps import Guided, SampledLogprob, Scored, StepPlan, StepResult
from .grammar_loader import GrammarLoader

if TYPE_CHECKING:
    from ...runtime.executor import Executor
    from ...runtime.launched import Launched
    from ...runtime.sampling.sampler import TopTokens
    from ...runtime.step import GuidedRun


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
        self._flying: tuple[StepPlan, Launched] | None = None
        self._mark = 0.0  # since when the step that flies has the device to itself

    @property
    def is_waiting(self) -> bool:
        """Whether a step is under way whose answer is still due."""
        return self._flying is not None

    def run(self, plan: StepPlan) -> None:
        """Executes a plan; answers it now, or with a later call of `run` or `settle`."""
        guides = {row.row: self._grammars.start(row) for row in plan.opened if row.grammar is not None}
        if not self._executor.starts_ahead(plan, guides):
            self.settle()
        if self._flying is None:
            self._mark = time.perf_counter()
        launched = self._executor.launch(plan, guides)
        self.settle()
        self._flying = (plan, launched)
        if launched.is_known:
            self.settle()

    def settle(self, *, only_if_over: bool = False) -> None:
        """Answers the step that is under way, if there is one, waiting for the device unless `only_if_over`."""
        if self._flying is None or (only_if_over and not self._flying[1].is_over):
            return
        plan, launched = self._flying
        self._flying = None
        output = launched.output()
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self._answer(
            StepResult(
                step=plan.step,
                counts=pack_ids(output.counts),
                token_ids=pack_ids(output.token_ids),
                logprobs=[SampledLogprob(each.row, each.logprob, _top(each.top)) for each in output.logprobs],
                scored=[Scored(run.entry, run.start, run.logprobs, list(map(_top, run.top))) for run in output.scored],
                guided=list(map(_guided, output.guided)),
                seconds=seconds,
                dropped_frames=self._dropped_frames(),
            )
        )


def _guided(run: GuidedRun) -> Guided:
    return Guided(run.entry, run.rewind, run.forced, run.held, run.complete, run.failure)


def _top(top: TopTokens) -> TopLogprobs:
    return TopLogprobs(top.ids, top.logprobs)
