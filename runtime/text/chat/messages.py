"""Conversations as OpenAI clients send them, made into what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import TemplateError

Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]

# The parameters of transformers' apply_chat_template: what a template's own variables cannot be called.
RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length", "messages",
    "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens", "tokenize",
    "tokenizer_kwargs", "tools", "truncation",
})  # fmt: skip
_NO_ARGUMENTS = ("", "null", "[]")


def normalize(
    messages: Sequence[Mapping[str, Any]], *, stand_in: Callable[[int, list[int]], str] | None = None
) -> list[Message]:
    """A copy in one form: content is a string, absent things are absent.

    Content that is null, missing or [] is "", and text parts are joined; null fields and an empty `tool_calls` are left
    out; arguments of a call that are missing, null, blank or say as much are an empty object.
    stand_in: gives the text that stands for token ids in the content of message i; without it there may be none.
    Raises TemplateError for a message without a role and for a content part that is neither.
    """
    if not messages:
        raise TemplateError("messages is empty; a conversation needs at least one message")
    return [_message(i, message, stand_in) for i, message in enumerate(messages)]


def with_arguments(messages: Sequence[Message], *, as_objects: bool) -> list[Message]:
    """The messages with the arguments of all calls as objects, those that are text and no JSON object excepted; or as
    text."""
    change = loaded_arguments if as_objects else _dumped_arguments

    def changed(call: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = function_of(call).get("arguments")
        made = change(arguments)
        return call if made is arguments else with_function(call, arguments=made)

    return [
        {**each, "tool_calls": [changed(call) for call in each["tool_calls"]]} if "tool_calls" in each else each
        for each in messages
    ]


def loaded_arguments(arguments: Any) -> Any:
    """Arguments as an object; text that is none stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        loaded = json.loads(arguments)
    except (RecursionError, ValueError):
        return arguments
    return loaded if isinstance(loaded, dict) else arguments


def has_tool_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some message calls a tool."""
    return any(message.get("tool_calls") for message in messages)


def function_of(call: Any) -> Mapping[str, Any]:
    """The part of a tool call that has the name and the arguments (some clients leave out the layer between)."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function", {}), Mapping):
        raise TemplateError("a tool call must be an object with a function object in it")
    return call.get("function", call)


def with_function(call: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A tool call with other things in its function."""
    changed = {**function_of(call), **changes}
    return {**call, "function": changed} if "function" in call else changed


def _message(index: int, message: Mapping[str, Any], stand_in: Callable[[int, list[int]], str] | None) -> Message:
    if not isinstance(message.get("role"), str):
        raise TemplateError("a message has no role", ("messages", index))
    out = {key: value for key, value in message.items() if value is not None}
    out["content"] = _content(index, message.get("content"), stand_in)
    calls = out.pop("tool_calls", None)
    if calls:
        out["tool_calls"] = [_tool_call(call) for call in calls]
    for call_id in (out.get("tool_call_id"), *(call.get("id") for call in calls or ())):
        if not isinstance(call_id, str | None):
            raise TemplateError("the id of a tool call must be text", ("messages", index))
    return out


def _content(index: int, content: Any, stand_in: Callable[[int, list[int]], str] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise TemplateError(f"content is {type(content).__name__}; it must be a string or a list of parts")
    return "".join(_part(index, part, stand_in) for part in content)


def _part(index: int, part: Any, stand_in: Callable[[int, list[int]], str] | None) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind == "token_ids" and stand_in is not None:
        return stand_in(index, part["token_ids"])
    if kind != "text" or not isinstance(part.get("text"), str):
        raise TemplateError(f"content part of type {kind!r} is not supported; only {{'type': 'text', 'text': …}} is")
    return part["text"]


def _tool_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function_of(call).get("arguments")
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in _NO_ARGUMENTS):
        return with_function(call, arguments={})
    return call


def _dumped_arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError) as error:
        raise TemplateError(f"the arguments of a tool call are not plain JSON data: {error}") from error
