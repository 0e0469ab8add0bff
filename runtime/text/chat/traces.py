"""Whether every message of a conversation leaves a trace in a prompt: a copy of it, with a mark for each text.

The marks are digits, which filters leave alone. The copy has the shape of the conversation and none of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import Message, Tools, function_of, loaded_arguments, with_function

_BASE = "7409182653"
_CONTENT, _REST, _NAME, _ARGUMENTS = range(4)
_KEPT = frozenset({"role", "name", "tool_call_id", "type", "id"})  # templates look at what these say

TOOL_MARK = "7409182654000"


def marked_tools(tools: Tools | None) -> Tools | None:
    """One tool in place of all, of the plainest kind; its name is TOOL_MARK."""
    if not tools:
        return None
    properties = {"q": {"type": "string", "description": "What is asked."}}
    parameters = {"type": "object", "properties": properties, "required": ["q"]}
    return [
        {"type": "function", "function": {"name": TOOL_MARK, "description": "It is a tool.", "parameters": parameters}}
    ]


def marked(messages: Sequence[Message]) -> tuple[list[Message], list[list[str]]]:
    """The copy, and for each message the marks that have to be in a prompt that shows it."""
    copies, marks = [], []
    ids: dict[str, str] = {}
    for i, message in enumerate(messages):
        copy: Message = {
            key: _mark(i, _REST) if isinstance(value, str) and value and key not in _KEPT else value
            for key, value in message.items()
        }
        wanted = []
        content = message["content"]
        if content and content.strip():
            copy["content"] = _mark(i, _CONTENT)
            wanted.append(copy["content"])
        if message.get("tool_calls"):
            copy["tool_calls"] = [_marked_call(i, n, call, wanted, ids) for n, call in enumerate(message["tool_calls"])]
        if message.get("tool_call_id") in ids:
            copy["tool_call_id"] = ids[message["tool_call_id"]]
        copies.append(copy)
        marks.append(wanted)
    return copies, marks


def first_untraced(text: str, marks: Sequence[Sequence[str]]) -> int | None:
    """The first message that has a mark which is not in the text."""
    return next((i for i, each in enumerate(marks) if any(mark not in text for mark in each)), None)


def _marked_call(message: int, number: int, call: Any, wanted: list[str], ids: dict[str, str]) -> Mapping[str, Any]:
    function = function_of(call)
    name, value = _mark(message, _NAME, number), _mark(message, _ARGUMENTS, number)
    call_id = call.get("id")
    if isinstance(call_id, str):  # some ids hold the name, and are all that a prompt shows of it
        ids[call_id] = re.sub(rf"(?<![\w-]){re.escape(str(function.get('name')))}(?![\w-])", name, call_id)
        call = {**call, "id": ids[call_id]}
    wanted.append(name)
    arguments = loaded_arguments(function.get("arguments"))
    if not arguments:
        return with_function(call, name=name)
    wanted.append(value)
    return with_function(call, name=name, arguments=f'{{"q": "{value}' if isinstance(arguments, str) else {"q": value})


def _mark(message: int, kind: int, number: int = 0) -> str:
    return f"{_BASE}{message:06d}{number:04d}{kind}"
