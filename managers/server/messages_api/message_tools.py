"""Anthropic's tools and `tool_choice` as the chat endpoint has them."""

from __future__ import annotations

import json
from typing import Any

from ...wire.errors import InvalidRequest, Path

_FIELDS = (
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "input_examples",
    "cache_control",
    "defer_loading",
    "allowed_callers",
    "eager_input_streaming",
)
_CHOICES = '{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": …} or {"type": "none"}'


def chat_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The tools as functions. Raises InvalidRequest; also for those that Anthropic's own servers or models define."""
    return [_function(tool, ("tools", i)) for i, tool in enumerate(tools or [])]


def _function(tool: dict[str, Any], place: Path) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        text = f"is {kind!r}, a tool that Anthropic defines; supported are tools with an input_schema (type 'custom')."
        raise InvalidRequest.about((*place, "type"), text)
    for key in tool:
        if key not in _FIELDS:
            raise InvalidRequest.about((*place, key), f"is unknown; allowed are {', '.join(_FIELDS)}.")
    if tool.get("defer_loading"):
        raise InvalidRequest.about((*place, "defer_loading"), "is not supported; every tool is shown to the model.")
    callers = tool.get("allowed_callers")
    if callers is not None and (not isinstance(callers, list) or "direct" not in callers):
        raise InvalidRequest.about((*place, "allowed_callers"), "must be a list that holds 'direct'.")
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest.about((*place, "name"), "must be text.")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequest.about((*place, "input_schema"), "must be a JSON Schema object.")
    description = tool.get("description") or ""
    if not isinstance(description, str):
        raise InvalidRequest.about((*place, "description"), "must be text.")
    examples = tool.get("input_examples") or []
    if not isinstance(examples, list):
        raise InvalidRequest.about((*place, "input_examples"), "must be a list of objects.")
    if examples:
        shown = "\n".join(json.dumps(each, ensure_ascii=False) for each in examples)
        description = f"{description}\nExamples of its input:\n{shown}".strip()
    function = {"name": tool["name"], "description": description, "parameters": tool["input_schema"]}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def chat_choice(choice: dict[str, Any] | None) -> tuple[str | dict[str, Any] | None, bool | None]:
    """`tool_choice` and `parallel_tool_calls` of the chat endpoint. Raises InvalidRequest."""
    if choice is None:
        return None, None
    place = ("tool_choice",)
    for key in choice:
        if key not in ("type", "name", "disable_parallel_tool_use"):
            raise InvalidRequest.about((*place, key), f"is unknown; allowed is {_CHOICES}.")
    once = choice.get("disable_parallel_tool_use")
    if not isinstance(once, bool | None):
        raise InvalidRequest.about((*place, "disable_parallel_tool_use"), "must be true or false.")
    parallel = None if once is None else not once
    kind = choice.get("type")
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise InvalidRequest.about((*place, "name"), "must be the name of a tool.")
        return {"type": "function", "function": {"name": choice["name"]}}, parallel
    if kind not in ("auto", "any", "none"):
        raise InvalidRequest.about((*place, "type"), f"is {kind!r}; tool_choice must be {_CHOICES}.")
    return {"auto": "auto", "any": "required", "none": "none"}[kind], parallel
