"""What chat bodies say of thinking, in the spellings of many servers, as the native request's fields."""

from __future__ import annotations

from typing import Any

import msgspec

from ...wire.errors import InvalidRequest, Path


class ReasoningObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenRouter's. exclude: think, but leave it out of the answer."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: int | None = None
    exclude: bool | None = None


class ThinkingObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DeepSeek's, GLM's and Anthropic's. type: "enabled" or "disabled"; "adaptive" and "auto" leave it open."""

    type: str
    budget_tokens: int | None = None


_SWITCH = {"enabled": True, "disabled": False, "adaptive": None, "auto": None}
# llama.cpp's and Groq's names of what becomes of the thinking: (told from the answer, shown)
_SHOWN = {
    "auto": (True, True),
    "deepseek": (True, True),
    "parsed": (True, True),
    "none": (False, True),
    "raw": (False, True),
    "hidden": (True, False),
}


def thinking_fields(body: Any) -> dict[str, Any]:
    """The native request's fields. Raises InvalidRequest where two of the body's say different things."""
    return {name: value for name, (value, _) in _said(body).items()}


def thinking_names(body: Any) -> dict[str, str]:
    """What the body calls those fields."""
    return {name: ".".join(map(str, path)) for name, (_, path) in _said(body).items()}


def _said(body: Any) -> dict[str, tuple[Any, Path]]:
    """The native fields with their values, and where these stand."""
    made: dict[str, tuple[Any, Path]] = {}

    def say(name: str, value: Any, *path: str) -> None:
        if value is None:
            return
        said, where = made.setdefault(name, (value, path))
        if said != value:
            raise InvalidRequest([path, " and ", where, " say different things."], path)

    say("reasoning_effort", body.reasoning_effort, "reasoning_effort")
    say("enable_thinking", body.enable_thinking, "enable_thinking")
    say("thinking_budget", body.thinking_budget, "thinking_budget")
    say("separate_reasoning", body.separate_reasoning, "separate_reasoning")
    say("include_reasoning", body.include_reasoning, "include_reasoning")
    if body.reasoning is not None:
        say("reasoning_effort", body.reasoning.effort, "reasoning", "effort")
        say("enable_thinking", body.reasoning.enabled, "reasoning", "enabled")
        say("thinking_budget", body.reasoning.max_tokens, "reasoning", "max_tokens")
        exclude = body.reasoning.exclude
        say("include_reasoning", None if exclude is None else not exclude, "reasoning", "exclude")
    if body.thinking is not None:
        if body.thinking.type not in _SWITCH:
            raise InvalidRequest.about(("thinking", "type"), f"must be one of {', '.join(_SWITCH)}.")
        say("enable_thinking", _SWITCH[body.thinking.type], "thinking", "type")
        say("thinking_budget", body.thinking.budget_tokens, "thinking", "budget_tokens")
    if body.reasoning_format is not None:
        if body.reasoning_format not in _SHOWN:
            raise InvalidRequest.about(("reasoning_format",), f"must be one of {', '.join(_SHOWN)}.")
        separate, include = _SHOWN[body.reasoning_format]
        say("separate_reasoning", separate, "reasoning_format")
        say("include_reasoning", include, "reasoning_format")
    return made
