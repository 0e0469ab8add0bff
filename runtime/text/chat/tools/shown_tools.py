"""Tools and calls as text, for templates that cannot show them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .format_detection import shows_tool_calls, shows_tools
from .tool_format import ToolFormat, Tools

Message = dict[str, Any]


def with_tools_shown(
    style: ToolFormat, messages: Sequence[Message], tools: Tools | None, template: str
) -> list[Message]:
    """The conversation for a template that cannot show tools, or calls, by itself: both become text.

    Tools are listed at the end of the system turn, which is made where there is none; calls of earlier turns follow
    their turn's content.
    """
    shown = list(messages) if shows_tool_calls(template) else [_with_calls_as_text(style, each) for each in messages]
    if not tools or shows_tools(template):
        return shown
    instruction = _instruction(style, tools)
    if shown and shown[0].get("role") in ("system", "developer"):
        first = shown[0]
        content = _text(first.get("content"))
        return [{**first, "content": f"{content}\n\n{instruction}" if content else instruction}, *shown[1:]]
    return [{"role": "system", "content": instruction}, *shown]


def _instruction(style: ToolFormat, tools: Tools) -> str:
    listed = "\n".join(json.dumps(dict(tool["function"]), ensure_ascii=False) for tool in tools)
    example = style.example or style.written([("<function-name>", '{"<argument-name>": "<value>"}')])
    return (
        "You can call functions. Their signatures are within <tools></tools>, one a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        f"To call one, write its name and its arguments as JSON, like this:\n{example}"
    )


def _with_calls_as_text(style: ToolFormat, message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = style.written([_name_and_arguments(call) for call in calls])
    content = _text(message.get("content"))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return str(function.get("name", "")), _as_models_write(text) or "{}"


def _as_models_write(text: str) -> str:
    """JSON that a client has written anew, without spaces or with escapes, in the form in which completions have it: so
    it is the same tokens again. Any other text stays as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    forms = ((ascii_too, ends) for ascii_too in (True, False) for ends in (None, (",", ":")))
    if any(text == json.dumps(value, ensure_ascii=ascii_too, separators=ends) for ascii_too, ends in forms):
        return json.dumps(value, ensure_ascii=False)
    return text


def _text(content: Any) -> str:
    """The content of a message as one text; parts that are not text are left for the template's own check."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
