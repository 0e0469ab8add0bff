"""What a request says of thinking before the answer, checked against what the model's template can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...wire.errors import InvalidRequest
from ...wire.lifecycle import ReasoningInfo
from ...wire.requests import ReasoningOptions

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
NAMES = ("reasoning_effort", "enable_thinking", "thinking_budget")


class Asks(Protocol):
    """The fields: of `request_fields.GenerateRequest`, or of `render.RenderRequest`."""

    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def thinking_budget(self) -> int | None: ...


def reasoning_options(
    request: Asks, model: ReasoningInfo | None, *, separate: bool = True, include: bool = True
) -> ReasoningOptions:
    """The fields as one. model: None where it is not known what it can do; else what only a model that thinks could do
    is refused for another. Raises InvalidRequest naming the field."""
    effort, enabled = request.reasoning_effort, request.enable_thinking
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest.about(("reasoning_effort",), f"must be one of {', '.join(EFFORTS)}; not {effort!r}.")
    if model is not None and not model.thinks:
        for name in ("reasoning_effort", "enable_thinking"):
            if getattr(request, name) not in (None, "none", False):
                allowed = "'none'" if name == "reasoning_effort" else "false"
                text = f"may only be {allowed}: this model does not think before it answers."
                raise InvalidRequest.about((name,), text)
    if effort is not None and enabled is not None and enabled == (effort == "none"):
        sentence = [("enable_thinking",), " and ", ("reasoning_effort",), f" {effort!r} contradict each other."]
        raise InvalidRequest(sentence, "enable_thinking")
    if effort is not None and enabled is None:
        enabled = effort != "none"
    effort = "" if effort in (None, "none") else effort
    budget = -1 if request.thinking_budget is None else request.thinking_budget
    return ReasoningOptions(enabled, effort, budget, separate, include)


def without_effect(given: Mapping[str, Any], model: ReasoningInfo) -> list[str]:
    """Which of these (checked) fields change nothing: of a model that does not think all, and of one that can neither
    be told to think nor how hard, its effort."""
    names = [name for name in given if name in NAMES]
    if not model.thinks:
        return names
    deaf = not (model.takes_switch or model.takes_effort)
    return [name for name in names if deaf and name == "reasoning_effort" and given[name] != "none"]
