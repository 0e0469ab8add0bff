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
    """DeepSeek's, GLM's and Anthropic's. type: "enabled" or "disabled"; "adaptive" and "auto" leave it to the template."""

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


class ThinkingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that are about thinking; null means what absent means."""

    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    reasoning: ReasoningObject | None = None
    thinking: ThinkingObject | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_format: str | None = None

    def thinking_fields(self) -> dict[str, Any]:
        """The native request's fields. Raises InvalidRequest where two of the body's say different things."""
        return {name: value for name, (value, _) in self._said().items()}

    def thinking_names(self) -> dict[str, str]:
        """What the body calls those fields, where it has other names for them."""
        return {name: ".".join(map(str, path)) for name, (_, path) in self._said().items()}

    def _said(self) -> dict[str, tuple[Any, Path]]:
        """The native fields with their values, and where these stand."""
        made: dict[str, tuple[Any, Path]] = {}

        def say(name: str, value: Any, *path: str) -> None:
            if value is None:
                return
            said, where = made.setdefault(name, (value, path))
            if said != value:
                raise InvalidRequest([path, " and ", where, " say different things."], path)

        say("reasoning_effort", self.reasoning_effort, "reasoning_effort")
        say("enable_thinking", self.enable_thinking, "enable_thinking")
        say("thinking_budget", self.thinking_budget, "thinking_budget")
        say("separate_reasoning", self.separate_reasoning, "separate_reasoning")
        say("include_reasoning", self.include_reasoning, "include_reasoning")
        if self.reasoning is not None:
            say("reasoning_effort", self.reasoning.effort, "reasoning", "effort")
            say("enable_thinking", self.reasoning.enabled, "reasoning", "enabled")
            say("thinking_budget", self.reasoning.max_tokens, "reasoning", "max_tokens")
            exclude = self.reasoning.exclude
            say("include_reasoning", None if exclude is None else not exclude, "reasoning", "exclude")
        if self.thinking is not None:
            if self.thinking.type not in _SWITCH:
                raise InvalidRequest.about(("thinking", "type"), f"must be one of {', '.join(_SWITCH)}.")
            say("enable_thinking", _SWITCH[self.thinking.type], "thinking", "type")
            say("thinking_budget", self.thinking.budget_tokens, "thinking", "budget_tokens")
        if self.reasoning_format is not None:
            if self.reasoning_format not in _SHOWN:
                raise InvalidRequest.about(("reasoning_format",), f"must be one of {', '.join(_SHOWN)}.")
            separate, include = _SHOWN[self.reasoning_format]
            say("separate_reasoning", separate, "reasoning_format")
            say("include_reasoning", include, "reasoning_format")
        return made
