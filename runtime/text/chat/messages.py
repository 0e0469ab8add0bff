"""Conversations as OpenAI clients send them, made into what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import TemplateError

Message = dict[str, Any]


def normalize(messages: Sequence[Mapping[str, Any]], *, parse_arguments: bool) -> list[Message]:
    """A copy in one form: content is a string, absent things are absent.

    Content that is null, missing or [] is "", and text parts are joined; null fields and an empty `tool_calls` are left
    out. With `parse_arguments`, tool-call arguments given as the text of a JSON object become that object. Raises
    TemplateError for a message without a role and for a content part that is not text.
    """
    if not messages:
        raise TemplateError("messages is empty; a conversation needs at least one message")
    return [_message(message, parse_arguments) for message in messages]


def has_text_arguments(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some tool call gives its arguments as text."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    return any(isinstance(_function(call).get("arguments"), str) for call in calls)


def _message(message: Mapping[str, Any], parse_arguments: bool) -> Message:
    if not isinstance(message.get("role"), str):
        raise TemplateError("a message has no role")
    out = {key: value for key, value in message.items() if value is not None}
    out["content"] = _content(message.get("content"))
    calls = out.pop("tool_calls", None)
    if calls:
        out["tool_calls"] = [_tool_call(call) for call in calls] if parse_arguments else calls
    return out


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise TemplateError(f"content is {type(content).__name__}; it must be a string or a list of parts")
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part.get("text"), str):
        raise TemplateError(f"content part of type {kind!r} is not supported; only {{'type': 'text', 'text': …}} is")
    return part["text"]


def _tool_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _function(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return call
    if not isinstance(parsed, dict):
        return call
    parsed_function = {**function, "arguments": parsed}
    return {**call, "function": parsed_function} if "function" in call else parsed_function


def _function(call: Any) -> Mapping[str, Any]:
    """The part of a tool call that has the name and the arguments (some clients leave out the layer between)."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function", {}), Mapping):
        raise TemplateError("a tool call must be an object with a function object in it")
    return call.get("function", call)
