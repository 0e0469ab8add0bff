"""The shape of a conversation, checked before the chat template sees it. Nothing in it is dropped in silence."""

from __future__ import annotations

from typing import Any

from ...wire.errors import InvalidRequest, Path
from .tool_fields import check_call, check_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    """Raise InvalidRequest naming the place, unless templates can rely on these messages and tools.

    Every message has a known role and a content that is text, absent, null, or a list of text parts; `tool_calls` are
    objects with a function of a name. Other keys are left for the template, which may use any.
    """
    if not messages:
        raise InvalidRequest.about(("messages",), "is empty; it must hold at least one message.")
    for i, message in enumerate(messages):
        _check_message(("messages", i), message)
    check_tools(tools)


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
        check_call((*place, "tool_calls", i), call)


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
