"""Conversations made into ones that a template shows whole: what it has no turn for goes, as text, into turns it has.

No text is ever left out here, and none changes its place but a tool's result, which follows its own call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .abilities import Abilities
from .messages import Message, Tools
from .tools.shown_tools import with_tools_shown
from .tools.tool_format import ToolFormat
from .turns import RESULT_ROLES, TurnForm, as_user_text, kind_of, reformed, turns_of

Conversation = tuple[list[Message], Tools | None]
_LEADING = ("system", "developer")
_NAMES = ("role", "name", "tool_call_id")
_FLAT = TurnForm(calls_as_text=True, results_as_user=True)


def folded(
    messages: Sequence[Message], tools: Tools | None, can: Abilities, style: ToolFormat, *, keep_system: bool = True
) -> Conversation:
    """Only what the template cannot show is changed. style: how tools and calls are shown as text. Without
    `keep_system`, the text of system messages goes to the user."""
    folded = list(messages)
    if tools and not can.shows_tools:
        folded, tools = with_tools_shown(style, folded, tools, "tool_calls"), None
    turns = list(turns_of(folded))
    made: list[Message] = []
    calls = 0
    for turn, following in zip(turns, [*turns[1:], []]):
        made += _turn(turn, following[0]["role"] if following else "", can, style, calls)
        calls += len(turn[0].get("tool_calls", ()))
    folded = made
    folded = _systems(folded, can, keep_system=keep_system)
    folded = _with_user(folded, can)
    if not can.several_users:
        folded = _merged(folded, "user")
    if not can.several_assistants:
        folded = _merged(folded, "assistant")
    return folded, tools


def flattened(
    messages: Sequence[Message], tools: Tools | None, style: ToolFormat, *, keep_system: bool
) -> Conversation:
    """Users' and assistants' messages by turns, a user's first; nothing else but, if wanted, one system message."""
    if tools:
        messages = with_tools_shown(style, messages, tools, "tool_calls")
    flat = []
    for turn in turns_of(messages):
        flat += reformed(turn, _FLAT, style) if turn[0].get("tool_calls") else map(_as_text, turn)
    start = _leading(flat)
    system = [{**_joined(flat[:start]), "role": "system"}] if start and keep_system else []
    turns = [{**each, "role": "user"} if each["role"] in _LEADING else each for each in flat[len(system) and start :]]
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": ""})
    return [*system, *_merged(_merged(turns, "user"), "assistant")], None


def completed_tools(tools: Tools) -> Tools:
    """With what templates count on: a description and parameters, and a description for each of these."""
    return [{**tool, "function": _completed_function(tool["function"])} for tool in tools]


def _completed_function(function: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in function.items() if value is not None}
    parameters = {"type": "object", "properties": {}, **given.get("parameters", {})}
    properties = parameters["properties"]
    if isinstance(properties, Mapping):
        parameters["properties"] = {
            name: {**schema, "description": schema.get("description") or ""} if isinstance(schema, Mapping) else schema
            for name, schema in properties.items()
        }
    return {"description": "", **given, "parameters": parameters}


def _turn(turn: Sequence[Message], next_role: str, can: Abilities, style: ToolFormat, before: int) -> list[Message]:
    message = turn[0]
    if message["role"] in RESULT_ROLES:
        return [_as_tool(message, can) if can.lone_results else as_user_text(message)]
    if not message.get("tool_calls"):
        return [message]
    form = can.turn_form(kind_of(turn, next_role))
    return reformed([message, *(_as_tool(each, can) for each in turn[1:])], form, style, before)


def _systems(messages: list[Message], can: Abilities, *, keep_system: bool) -> list[Message]:
    """System messages where the template takes them, and the others' text as users'."""
    start = _leading(messages)
    leading, rest = messages[:start], messages[start:]
    if not can.developer:
        leading = [{**each, "role": "system"} for each in leading]
    if len(leading) > 1 and not can.several_systems:
        leading = [_joined(leading)]
    if leading and not (keep_system and (leading[0]["role"] == "developer" or can.system)):
        text = {**_joined(leading), "role": "user"}
        leading, rest = (
            [],
            [_joined([text, rest[0]]), *rest[1:]] if rest and rest[0]["role"] == "user" else [text, *rest],
        )
    return leading + [_late(each, can, keep_system=keep_system) for each in rest]


def _late(message: Message, can: Abilities, *, keep_system: bool) -> Message:
    role = message["role"]
    if role in _LEADING and not keep_system:
        return {**message, "role": "user"}
    if role == "developer" and not can.late_developer:
        role = "system"
    if role == "system" and not can.late_system:
        role = "user"
    return {**message, "role": role}


def _with_user(messages: list[Message], can: Abilities) -> list[Message]:
    """An empty user's message at the start where the template wants one."""
    start = _leading(messages)
    roles = [each["role"] for each in messages]
    starts_badly = roles[start : start + 1] == ["assistant"] and not can.assistant_first
    if starts_badly or ("user" not in roles and not can.no_user):
        return [*messages[:start], {"role": "user", "content": ""}, *messages[start:]]
    return messages


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages there are at the start."""
    return next((i for i, each in enumerate(messages) if each["role"] not in _LEADING), len(messages))


def _merged(messages: Sequence[Message], role: str) -> list[Message]:
    """With neighbours of that role in one message; calls stay apart."""
    merged = []
    for mergeable, neighbours in groupby(messages, lambda each: each["role"] == role and "tool_calls" not in each):
        together = list(neighbours)
        merged += [_joined(together)] if mergeable else together
    return merged


def _joined(messages: Sequence[Message]) -> Message:
    """One message of several. Their texts stand one below the other; of all else the first one counts."""
    joined: Message = {}
    for key in dict.fromkeys(key for each in messages for key in each):
        values = [each[key] for each in messages if key in each]
        is_text = key not in _NAMES and all(isinstance(value, str) for value in values)
        joined[key] = "\n\n".join(filter(None, values)) if is_text else values[0]
    return joined


def _as_tool(result: Message, can: Abilities) -> Message:
    return {**result, "role": "tool"} if result["role"] == "function" and not can.function_role else result


def _as_text(message: Message) -> Message:
    return as_user_text(message) if message["role"] in RESULT_ROLES else message
