"""What the steps of a program do: from the state before them to their outcome, by way of the backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..backends.base import Backend, Completed, TokenCounts
from ..history import History, Segment
from ..ir import GenOptions, RoleBegin, RoleEnd, Select, Text
from ..words.choices import Decision, Scored, decide, needs_unconditional
from ..words.reasoning import separate
from .output import Outcome, Output

Item = Text | RoleBegin | RoleEnd | Output
"""What a state is made of."""


async def resolved(items: tuple[Item, ...]) -> History:
    """The items with their outcomes; waits for them. Raises the error of one that failed."""
    history: History = []
    for item in items:
        if isinstance(item, Output):
            history.append((await item.ready()).segment)
        else:
            history.append(Segment.of(item.text) if isinstance(item, Text) else item)
    return history


def generation(
    backend: Backend,
    before: tuple[Item, ...],
    options: GenOptions,
    output: Output,
    *,
    stream: bool,
    tags: tuple[str, str] | None = None,
) -> Callable[[], Awaitable[Outcome]]:
    """The work of a `gen`. tags: around the reasoning that is to be separated; its text then does not stream."""

    async def work() -> Outcome:
        history = await resolved(before)
        output.begin()
        emit = output.pieces.put if stream and tags is None else None
        completed = await backend.generate(history, options, emit)
        return _generated(completed) if tags is None else _without_reasoning(completed, tags)

    return work


def selection(
    backend: Backend, before: tuple[Item, ...], select: Select, output: Output
) -> Callable[[], Awaitable[Outcome]]:
    """The work of a `select`."""

    async def work() -> Outcome:
        history = await resolved(before)
        output.begin()
        wanted = needs_unconditional(select.method)
        judged = await backend.judge(history, select.choices, unconditional=wanted)
        return _selected(select, judged.scored, decide(select.method, judged.scored), judged.usage)

    return work


def _generated(completed: Completed) -> Outcome:
    first = completed.samples[0]
    many = len(completed.samples) > 1
    meta = _counts(completed.usage)
    reasons = [each.finish_reason for each in completed.samples]
    meta["finish_reason"] = reasons if many else reasons[0]
    if first.logprobs is not None:
        logprobs = [each.logprobs for each in completed.samples]
        meta["logprobs"] = logprobs if many else logprobs[0]
    value = [each.text for each in completed.samples] if many else first.text
    return Outcome(value, Segment(first.runs, first.text, generated=True), meta)


def _without_reasoning(completed: Completed, tags: tuple[str, str]) -> Outcome:
    """The answer takes the whole completion's place in the state, as text: it is not what was generated there."""
    plain = _generated(completed)
    first = completed.samples[0]
    reasoning, answer = (first.reasoning, first.text) if first.reasoning else separate(first.text, tags)
    return Outcome(answer, Segment.of(answer), plain.meta, reasoning)


def _selected(select: Select, scored: list[Scored], decision: Decision, usage: TokenCounts) -> Outcome:
    choice = select.choices[decision.index]
    meta = _counts(usage)
    meta["finish_reason"] = "select"
    meta["scores"] = dict(zip(select.choices, decision.scores))
    meta["logprobs"] = {
        text: [{"token_id": t.token_id, "text": t.text, "logprob": t.logprob} for t in each.tokens]
        for text, each in zip(select.choices, scored)
    }
    return Outcome(choice, Segment((choice,), choice, generated=True), meta)


def _counts(usage: TokenCounts) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }
