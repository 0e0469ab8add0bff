"""Whether every message of a conversation leaves a trace in a prompt: a copy of it, with a mark for each text.

The marks are digits, which filters leave alone. The copy has the shape of the conversation and none of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import Message, Tools, function_of, loaded_arguments, with_function
from .turns import turns_of

_BASE = "7409182653"
_LETTER = re.compile("[A-Za-z0-9]")
_WORD = re.compile(r"\w+")
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
        if isinstance(given := message.get("tool_call_id"), str):
            copy["tool_call_id"] = ids.setdefault(given, _like(given, len(ids)))
        copies.append(copy)
        marks.append(wanted)
    return copies, marks


def shortened(messages: Sequence[Message]) -> list[Message]:
    """The conversation without rounds that only repeat, in kind, what came before: what a template makes of it follows
    from the kinds of its turns, of their neighbours, and of those at both ends."""
    kept: list[list[Message]] = []
    kinds: list[Any] = []
    seen: dict[Any, int] = {}  # by the kinds of a turn and the two before it: where it was kept
    settled = 0  # of the kept ones, those up to the last that was new
    for turn in turns_of(messages):
        kept.append(turn)
        kinds.append(tuple(map(_kind, turn)))
        step = tuple(kinds[-3:])
        before = seen.get(step)
        if before is None:
            settled = len(kept)
        elif settled < before < len(kept) - 1 and kinds[before - 2 : before + 1] == kinds[-3:]:
            del kept[before + 1 :], kinds[before + 1 :]
        seen[step] = len(kept) - 1
    return [message for turn in kept for message in turn]


def first_untraced(text: str, marks: Sequence[Sequence[str]]) -> int | None:
    """The first message that has a mark which is not in the text."""
    return next((i for i, each in enumerate(marks) if any(mark not in text for mark in each)), None)


def _marked_call(message: int, number: int, call: Any, wanted: list[str], ids: dict[str, str]) -> Mapping[str, Any]:
    function = function_of(call)
    name, value = _mark(message, _NAME, number), _mark(message, _ARGUMENTS, number)
    if isinstance(given := call.get("id"), str):
        parts = re.split(rf"(?<![\w-]){re.escape(str(function.get('name')))}(?![\w-])", given)
        # some ids hold the name, and are all that a prompt shows of it
        call = {**call, "id": ids.setdefault(given, name.join(parts) if parts[1:] else _like(given, len(ids)))}
    wanted.append(name)
    arguments = loaded_arguments(function.get("arguments"))
    if not arguments:
        return with_function(call, name=name)
    wanted.append(value)
    return with_function(call, name=name, arguments=f'{{"q": "{value}' if isinstance(arguments, str) else {"q": value})


def _kind(message: Message) -> Any:
    """All that a template may go by, but texts."""
    calls = [
        (bool(arguments), isinstance(arguments, str), frozenset(call), _id_kind(call.get("id")))
        for call in message.get("tool_calls", ())
        for arguments in [loaded_arguments(function_of(call).get("arguments"))]
    ]
    id_kind = _id_kind(message.get("tool_call_id"))
    return message["role"], bool(message["content"].strip()), frozenset(message), tuple(calls), id_kind


def _id_kind(given: Any) -> Any:
    if not isinstance(given, str):
        return type(given)
    return len(given) if given.isalnum() else _WORD.sub("a", given)


def _like(given: str, number: int) -> str:
    """An id as long as the one that is given, of the same kind of characters, with a number in it."""
    digits = str(number)
    if len(given) <= len(digits):
        return given
    return _LETTER.sub("a", given[: -len(digits)]) + digits


def _mark(message: int, kind: int, number: int = 0) -> str:
    return f"{_BASE}{message:06d}{number:04d}{kind}"
