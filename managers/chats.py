"""The shape of a conversation, checked before the chat template sees it. Nothing in it is dropped in silence."""

from __future__ import annotations

from typing import Any

from .errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    """Raise InvalidRequest naming the place, unless templates can rely on these messages and tools.

    Every message has a known role and a content that is text, absent, null, or a list of text parts; `tool_calls` are
    objects with a function of a name. Other keys are left for the template, which may use any.
    """
    if not messages:
        raise InvalidRequest("messages is empty; it must hold at least one message.", "messages")
    for i, message in enumerate(messages):
        _check_message(f"messages[{i}]", message)
    for i, tool in enumerate(tools or []):
        _check_function(f"tools[{i}]", tool)


def _check_message(place: str, message: dict[str, Any]) -> None:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{place}.role must be one of {', '.join(ROLES)}; not {role!r}.", f"{place}.role")
    _check_content(f"{place}.content", message.get("content"))
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise InvalidRequest(f"{place}.tool_calls must be a list of tool calls.", f"{place}.tool_calls")
    for i, call in enumerate(calls):
        _check_function(f"{place}.tool_calls[{i}]", call)


def _check_content(place: str, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(f"{place} must be text, null, or a list of text parts.", place)
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part, dict):
            raise InvalidRequest(f"{place}[{i}] has the type {kind!r}; only 'text' is supported.", f"{place}[{i}].type")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{place}[{i}].text must be text.", f"{place}[{i}].text")


def _check_function(place: str, value: Any) -> None:
    """A tool, or a call of one: {"type": "function", "function": {"name": …}}."""
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        raise InvalidRequest(f"{place} must be an object of type 'function'.", place)
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{place}.function must be an object with a name.", f"{place}.function")
