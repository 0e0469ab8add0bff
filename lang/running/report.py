"""What a program's run has cost: tokens computed, tokens reused, time."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from .output import Output
from .run import Run


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step. computed: prompt tokens that were not cached. seconds: from its request to its end; error: why it
    failed, with the counts then 0."""

    step: str
    branch: str
    line: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    seconds: float
    error: str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run. Its totals are sums over the steps that have ended; `seconds` is the time from its start to its end.

    `str(report)` is a table, `report.to_dict()` fit for JSON.
    """

    program: str
    backend: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    steps: list[StepReport]

    @classmethod
    def of(cls, run: Run) -> Report:
        """What the run has cost so far."""
        steps = [_step(output) for output in list(run.outputs) if output.done]
        return cls(
            program=run.program,
            backend=run.backend.name,
            seconds=(run.ended or time.perf_counter()) - run.began,
            prompt_tokens=sum(each.prompt_tokens for each in steps),
            cached_tokens=sum(each.cached_tokens for each in steps),
            computed_tokens=sum(each.computed_tokens for each in steps),
            completion_tokens=sum(each.completion_tokens for each in steps),
            steps=steps,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as dicts, lists, text and numbers."""
        return msgspec.to_builtins(self)

    def __str__(self) -> str:
        shown = ("prompt", "reused", "computed", "generated", "seconds")
        rows: list[tuple[str, ...]] = [("step", "branch", "line", *shown)]
        for each in self.steps:
            counts = (each.prompt_tokens, each.cached_tokens, each.computed_tokens, each.completion_tokens)
            seconds = f"{each.seconds:.2f}" if each.error is None else "failed"
            rows.append((each.step, each.branch, str(each.line), *map(str, counts), seconds))
        total = (self.prompt_tokens, self.cached_tokens, self.computed_tokens, self.completion_tokens)
        rows.append((f"{self.program}, in all", "", "", *map(str, total), f"{self.seconds:.2f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        )


def _step(output: Output) -> StepReport:
    meta = {} if output.error is not None else output.outcome().meta
    prompt, cached = meta.get("prompt_tokens", 0), meta.get("cached_tokens", 0)
    return StepReport(
        step=output.text,
        branch=output.branch,
        line=output.location.line,
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        completion_tokens=meta.get("completion_tokens", 0),
        seconds=output.ended - output.began,
        error=None if output.error is None else str(output.error),
    )
