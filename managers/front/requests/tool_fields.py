"""The tools of a conversation and which of them may be called, checked before the tokenizer process sees them.

A custom tool, whose input is free text, leaves here as a function with one parameter, as templates and models know it;
what it allows travels beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...wire.errors import InvalidRequest, Path
from ...wire.requests import CUSTOM_INPUT, CustomFormat

MAX_TOOLS = 128
_MODES = ("none", "auto", "required")
_ALLOWED_CHOICES = (
    '\'none\', \'auto\', \'required\', {"type": "function", "function": {"name": …}}, '
    '{"type": "custom", "custom": {"name": …}} or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}'
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_KINDS = ("function", "custom")

Tool = dict[str, Any]


@dataclass(frozen=True)
class ToolChoice:
    """mode: "none", "auto" or "required". allowed: the only tools that may be called, None for all. once: one call."""

    mode: str = "none"
    allowed: list[str] | None = None
    once: bool = False


def check_tools(tools: Sequence[Tool] | None) -> None:
    """Raise InvalidRequest naming the place."""
    tools = tools or []
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest.about(("tools",), f"may hold {MAX_TOOLS} functions at most, not {len(tools)}.")
    names: set[str] = set()
    for i, tool in enumerate(tools):
        place, said = _named_part(("tools", i), tool)
        name = said["name"]
        if not _NAME.fullmatch(name):
            text = f"must be of 1 to 128 letters, digits, dots, dashes or underscores; not {name!r}."
            raise InvalidRequest.about((*place, "name"), text)
        if name in names:
            raise InvalidRequest.about((*place, "name"), f"is {name!r}, which another tool has.")
        names.add(name)
        if not isinstance(said.get("description"), str | None):
            raise InvalidRequest.about((*place, "description"), "must be text.")
        if place[-1] == "custom":
            custom_format(said.get("format"), (*place, "format"))
        else:
            _check_function(place, said)


def _check_function(place: Path, function: Mapping[str, Any]) -> None:
    parameters, strict = function.get("parameters"), function.get("strict")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest.about((*place, "parameters"), "must be a JSON Schema object.")
    if parameters is not None and parameters.get("type", "object") != "object":
        raise InvalidRequest.about((*place, "parameters"), "must have the type 'object'.")
    if not (strict is None or isinstance(strict, bool)):
        raise InvalidRequest.about((*place, "strict"), "must be true or false.")


def check_call(place: Path, call: Any) -> None:
    """Raise InvalidRequest unless this is a call of an earlier turn: of a function, or of a custom tool."""
    place, said = _named_part(place, call)
    if place[-1] == "custom" and not isinstance(said.get("input", ""), str):
        raise InvalidRequest.about((*place, "input"), "must be text.")


def custom_format(value: Any, place: Path) -> CustomFormat:
    """What the input of a custom tool must match. Raises InvalidRequest."""
    if value is None or value == {"type": "text"}:
        return CustomFormat()
    shape = '{"type": "text"} or {"type": "grammar", "grammar": {"syntax": "lark" or "regex", "definition": …}}'
    if not isinstance(value, dict) or value.get("type") != "grammar":
        raise InvalidRequest.about(place, f"must be {shape}.")
    grammar = value.get("grammar")
    if not isinstance(grammar, dict) or not isinstance(grammar.get("definition"), str):
        raise InvalidRequest.about((*place, "grammar"), f"must be an object with a definition: {shape}.")
    if grammar.get("syntax") not in ("lark", "regex"):
        raise InvalidRequest.about((*place, "grammar", "syntax"), "must be 'lark' or 'regex'.")
    return CustomFormat(grammar["syntax"], grammar["definition"])


def custom_formats(tools: Sequence[Tool] | None) -> dict[str, CustomFormat]:
    """The custom tools among these (checked) ones, by their names."""
    custom = [tool["custom"] for tool in tools or [] if tool.get("type") == "custom"]
    return {each["name"]: custom_format(each.get("format"), ()) for each in custom}


def tools_as_functions(tools: Sequence[Tool] | None) -> list[Tool] | None:
    """The (checked) tools as a template knows them; None for none."""
    return [_as_function(tool) for tool in tools] if tools else None


def _as_function(tool: Tool) -> Tool:
    if tool.get("type") != "custom":
        return tool
    custom = tool["custom"]
    wanted = custom_format(custom.get("format"), ())
    text: dict[str, Any] = {"type": "string"}
    if wanted.syntax != "text":
        text["description"] = f"Must match this {wanted.syntax} grammar:\n{wanted.definition}"
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    parameters["additionalProperties"] = False
    described = {"description": custom["description"]} if custom.get("description") else {}
    return {"type": "function", "function": {"name": custom["name"], **described, "parameters": parameters}}


def calls_as_functions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The (checked) conversation with calls of custom tools as calls of functions."""

    def as_function(call: dict[str, Any]) -> dict[str, Any]:
        if call.get("type") != "custom":
            return call
        custom = call["custom"]
        arguments = json.dumps({CUSTOM_INPUT: custom.get("input", "")}, ensure_ascii=False)
        rest = {key: value for key, value in call.items() if key != "custom"}
        return {**rest, "type": "function", "function": {"name": custom["name"], "arguments": arguments}}

    def shown(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        return {**message, "tool_calls": [as_function(call) for call in calls]} if calls else message

    return [shown(message) for message in messages]


def check_tool_choice(
    tools: Sequence[Tool] | None, choice: str | dict[str, Any] | None, parallel: bool | None
) -> ToolChoice:
    """What a (checked) request's fields mean together. Raises InvalidRequest."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest.about(("tool_choice",), "needs tools.")
        return ToolChoice()
    names = [tool[tool.get("type", "function")]["name"] for tool in tools]
    once = parallel is False
    if choice is None or isinstance(choice, str):
        if choice not in (None, *_MODES):
            raise InvalidRequest.about(("tool_choice",), f"must be {_ALLOWED_CHOICES}; not {choice!r}.")
        return ToolChoice(choice or "auto", None, once)
    if choice.get("type") != "allowed_tools":
        return ToolChoice("required", [_chosen(("tool_choice",), choice, names)], once=True)
    allowed = choice.get("allowed_tools")
    place: Path = ("tool_choice", "allowed_tools")
    if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list) or not allowed["tools"]:
        raise InvalidRequest.about(place, f"must be an object with a list of tools; tool_choice is {_ALLOWED_CHOICES}.")
    if allowed.get("mode") not in ("auto", "required"):
        raise InvalidRequest.about((*place, "mode"), f"must be 'auto' or 'required'; not {allowed.get('mode')!r}.")
    chosen = [_chosen((*place, "tools", i), each, names) for i, each in enumerate(allowed["tools"])]
    return ToolChoice(allowed["mode"], list(dict.fromkeys(chosen)), once)


def _chosen(place: Path, choice: Any, names: Sequence[str]) -> str:
    """The name of the tool that is meant."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    said = choice.get(kind) if kind in _KINDS else None
    name = said.get("name") if isinstance(said, dict) else None
    if not isinstance(name, str):
        allowed = _ALLOWED_CHOICES if len(place) == 1 else '{"type": "function", "function": {"name": …}}'
        raise InvalidRequest.about(place, f"must be {allowed}.")
    if name not in names:
        raise InvalidRequest.about(place, f"names the function {name!r}; tools has {', '.join(names)}.")
    return name


def _named_part(place: Path, value: Any) -> tuple[Path, dict[str, Any]]:
    """A tool's, or a call's, own part and its place: {"type": "function", "function": {"name": …}}."""
    kind = value.get("type", "function") if isinstance(value, dict) else None
    if kind not in _KINDS:
        raise InvalidRequest.about(place, "must be an object of type 'function' or 'custom'.")
    said = value.get(kind)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        raise InvalidRequest.about((*place, kind), "must be an object with a name.")
    return (*place, kind), said
