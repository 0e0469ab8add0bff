"""The shape of a conversation, checked before the chat template sees it. Nothing in it is dropped in silence."""

from __future__ import annotations

from typing import Any

from ....runtime.text.chat.messages import RESERVED
from ....runtime.text.thoughts.template_reasoning import FIELDS as THOUGHT_FIELDS
from ...wire.errors import InvalidRequest, Path
from .ranges import check_ids
from .tool_fields import check_call, check_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


_FIELDS = ("messages", "tools", "add_generation_prompt", "continue_final_message")


def check_chat(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any],
    vocab_size: int,
) -> None:
    """Raise InvalidRequest naming the place, unless templates can rely on these messages and tools.

    Every message has a known role and a content that is text, absent, null, or a list of parts, of text or of token
    ids; `tool_calls` are objects with a function of a name. Other keys are left for the template, which may use any.
    """
    if not messages:
        raise InvalidRequest.about(("messages",), "is empty; it must hold at least one message.")
    for i, message in enumerate(messages):
        _check_message(("messages", i), message, vocab_size)
    check_tools(tools)
    for name in template_kwargs:
        if name in RESERVED:
            text = "it is a field of its own." if name in _FIELDS else "it is no variable of a chat template."
            raise InvalidRequest.about(("template_kwargs", name), f"may not be set: {text}")


def _check_message(place: Path, message: dict[str, Any], vocab_size: int) -> None:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest.about((*place, "role"), f"must be one of {', '.join(ROLES)}; not {role!r}.")
    _check_content((*place, "content"), message.get("content"), vocab_size)
    for name in THOUGHT_FIELDS[:2]:
        if role == "assistant" and not isinstance(message.get(name), str | None):
            raise InvalidRequest.about((*place, name), "must be text.")
    if not isinstance(message.get("tool_call_id"), str | None):
        raise InvalidRequest.about((*place, "tool_call_id"), "must be text.")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise InvalidRequest.about((*place, "tool_calls"), "must be a list of tool calls.")
    for i, call in enumerate(calls):
        check_call((*place, "tool_calls", i), call)
        if not isinstance(call.get("id"), str | None):
            raise InvalidRequest.about((*place, "tool_calls", i, "id"), "must be text.")


def _check_content(place: Path, content: Any, vocab_size: int) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest.about(place, "must be text, null, or a list of parts.")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "token_ids") or not isinstance(part, dict):
            text = f" has the type {kind!r}; only 'text' and 'token_ids' are supported."
            raise InvalidRequest([(*place, i), text], (*place, i, "type"))
        if kind == "token_ids":
            _check_part_ids((*place, i, "token_ids"), part.get("token_ids"), vocab_size)
        elif not isinstance(part.get("text"), str):
            raise InvalidRequest.about((*place, i, "text"), "must be text.")


def _check_part_ids(place: Path, ids: Any, vocab_size: int) -> None:
    if not isinstance(ids, list) or any(type(each) is not int for each in ids):
        raise InvalidRequest.about(place, "must be a list of token ids.")
    check_ids(place, ids, vocab_size)
