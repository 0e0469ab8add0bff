"""Plans are answered in order; a step may fly while the next one is launched; none is answered before it is over."""

from __future__ import annotations

from typing import Any

from sapwood.managers.worker.steps import Steps
from sapwood.runtime.execution.launched import Launched, known
from sapwood.runtime.step import EntryResult, StepPlan, StepResult


def plan(step: int) -> StepPlan:
    return StepPlan(step, [], [], [], b"", b"", b"", b"", b"", b"")


def gained(token: int) -> StepResult:
    return StepResult(token, [EntryResult([token])])


class Device:
    """An executor whose steps are over when told so; `log` is what happened, in order."""

    def __init__(self, ahead: bool = True) -> None:
        self.ahead = ahead
        self.over: set[int] = set()
        self.log: list[str] = []

    def starts_ahead(self, step: StepPlan, matchers: Any) -> bool:
        return self.ahead

    def launch(self, step: StepPlan, matchers: Any) -> Launched:
        self.log.append(f"launch {step.step}")
        if not self.ahead:
            return known(gained(step.step))

        def finish() -> StepResult:
            self.log.append(f"wait {step.step}")
            return gained(step.step)

        return Launched(finish, lambda: step.step in self.over)

    def answer(self, result: StepResult) -> None:
        assert result.entries == [EntryResult([result.step])]
        assert result.seconds >= 0
        self.log.append(f"answer {result.step}")


def steps_on(device: Device) -> Steps:
    unused: Any = None
    executor: Any = device
    return Steps(executor, unused, device.answer, lambda: 0)


def test_the_next_step_is_launched_before_the_last_is_waited_for() -> None:
    device = Device()
    steps = steps_on(device)
    steps.run(plan(0))
    assert steps.is_waiting
    steps.run(plan(1))
    assert device.log == ["launch 0", "launch 1", "wait 0", "answer 0"]
    steps.settle()
    assert device.log[-2:] == ["wait 1", "answer 1"]
    assert not steps.is_waiting


def test_a_step_that_cannot_start_ahead_waits_for_the_last_ones_answer() -> None:
    device = Device()
    steps = steps_on(device)
    steps.run(plan(0))
    device.ahead = False
    steps.run(plan(1))
    assert device.log == ["launch 0", "wait 0", "answer 0", "launch 1", "answer 1"]
    assert not steps.is_waiting


def test_a_look_at_a_step_that_is_not_over_does_not_wait() -> None:
    device = Device()
    steps = steps_on(device)
    steps.run(plan(0))
    steps.settle(only_if_over=True)
    assert device.log == ["launch 0"]
    device.over.add(0)
    steps.settle(only_if_over=True)
    assert device.log == ["launch 0", "wait 0", "answer 0"]
