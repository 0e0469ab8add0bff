"""The shape of a conversation, checked before the chat template sees it. Nothing in it is dropped in silence."""

from __future__ import annotations

import re
from typing import Any

from ...wire.errors import InvalidRequest, Path

MAX_TOOLS = 128
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TOOL_CHOICES = ("none", "auto", "required")
_ALLOWED_CHOICES = '\'none\', \'auto\', \'required\', or {"type": "function", "function": {"name": …}}'
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    """Raise InvalidRequest naming the place, unless templates can rely on these messages and tools.

    Every message has a known role and a content that is text, absent, null, or a list of text parts; `tool_calls` are
    objects with a function of a name. Other keys are left for the template, which may use any.
    """
    if not messages:
        raise InvalidRequest.about(("messages",), "is empty; it must hold at least one message.")
    for i, message in enumerate(messages):
        _check_message(("messages", i), message)
    _check_tools(tools or [])


def check_tool_choice(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, parallel: bool | None
) -> tuple[str, str | None]:
    """("none", "auto" or "required", the one function that may be called if only one). Raises InvalidRequest."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest.about(("tool_choice",), "needs tools.")
        if parallel is not None:
            raise InvalidRequest.about(("parallel_tool_calls",), "needs tools.")
        return "none", None
    if choice is None or isinstance(choice, str):
        if choice not in (None, *_TOOL_CHOICES):
            raise InvalidRequest.about(("tool_choice",), f"must be {_ALLOWED_CHOICES}; not {choice!r}.")
        return choice or "auto", None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise InvalidRequest.about(("tool_choice",), f"must be {_ALLOWED_CHOICES}.")
    if name not in (names := [tool["function"]["name"] for tool in tools]):
        text = f"names the function {name!r}; tools has {', '.join(names)}."
        raise InvalidRequest.about(("tool_choice",), text)
    return "required", name


def _check_tools(tools: list[dict[str, Any]]) -> None:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest.about(("tools",), f"may hold {MAX_TOOLS} functions at most, not {len(tools)}.")
    names: set[str] = set()
    for i, tool in enumerate(tools):
        _check_function(("tools", i), tool)
        place, function = ("tools", i, "function"), tool["function"]
        name, parameters, strict = function["name"], function.get("parameters"), function.get("strict")
        if not _NAME.fullmatch(name):
            text = f"must be of 1 to 64 letters, digits, dots, dashes or underscores; not {name!r}."
            raise InvalidRequest.about((*place, "name"), text)
        if name in names:
            raise InvalidRequest.about((*place, "name"), f"is {name!r}, which another tool has.")
        names.add(name)
        if parameters is not None and not isinstance(parameters, dict):
            raise InvalidRequest.about((*place, "parameters"), "must be a JSON Schema object.")
        if parameters is not None and parameters.get("type", "object") != "object":
            raise InvalidRequest.about((*place, "parameters"), "must have the type 'object'.")
        if not (strict is None or isinstance(strict, bool)):
            raise InvalidRequest.about((*place, "strict"), "must be true or false.")


def _check_message(place: Path, message: dict[str, Any]) -> None:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest.about((*place, "role"), f"must be one of {', '.join(ROLES)}; not {role!r}.")
    _check_content((*place, "content"), message.get("content"))
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise InvalidRequest.about((*place, "tool_calls"), "must be a list of tool calls.")
    for i, call in enumerate(calls):
        _check_function((*place, "tool_calls", i), call)


def _check_content(place: Path, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest.about(place, "must be text, null, or a list of text parts.")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part, dict):
            text = f" has the type {kind!r}; only 'text' is supported."
            raise InvalidRequest([(*place, i), text], (*place, i, "type"))
        if not isinstance(part.get("text"), str):
            raise InvalidRequest.about((*place, i, "text"), "must be text.")


def _check_function(place: Path, value: Any) -> None:
    """A tool, or a call of one: {"type": "function", "function": {"name": …}}."""
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        raise InvalidRequest.about(place, "must be an object of type 'function'.")
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest.about((*place, "function"), "must be an object with a name.")
