"""The tools of a response and which of them may be called, as the chat endpoint has them.

Tools that OpenAI's own servers run cannot be offered to the model. Beside others they are left out, and named to who
asked; where nothing else is offered, or one of them is demanded, they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...wire.errors import InvalidRequest, Path

ToolObject = dict[str, Any]

_HOSTED = (
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search",
    "computer", "computer_use_preview", "code_interpreter", "image_generation", "mcp", "local_shell", "shell",
    "apply_patch", "tool_search", "programmatic_tool_calling",
)  # fmt: skip
_OWN = ("function", "custom", "namespace")
_FUNCTION = ("name", "description", "parameters", "strict")
_CUSTOM = ("name", "description", "format")
_UNUSED = ("type", "defer_loading", "allowed_callers", "output_schema")  # about tools that are searched, or run there
_MODES = ("none", "auto", "required")


@dataclass
class ToolSet:
    """chat: the tools as the chat endpoint has them; places: where in the body each of them stands. offered: those of
    the body that the model can call. namespaces: (namespace, name) by the name under
    which the model knows a tool that has one."""

    chat: list[ToolObject] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    offered: list[ToolObject] = field(default_factory=list)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)


def in_namespace(namespace: str | None, name: str) -> str:
    """The name under which the model knows a tool."""
    return f"{namespace}.{name}" if namespace else name


def left_out(tools: list[ToolObject] | None) -> list[str]:
    """The types of those tools of a body that cannot be offered."""
    return list(dict.fromkeys(str(tool["type"]) for tool in tools or [] if tool.get("type") in _HOSTED))


def read_tools(tools: list[ToolObject] | None) -> ToolSet:
    """The tools of a body. Raises InvalidRequest naming the place."""
    read = ToolSet()
    for i, tool in enumerate(tools or []):
        place: Path = ("tools", i)
        kind = tool.get("type")
        if kind in _HOSTED:
            continue
        if kind == "namespace":
            _read_namespace(read, tool, place)
            read.offered.append(tool)
        elif kind in ("function", "custom"):
            _add_tool(read, tool, place, None)
            read.offered.append({"parameters": None, "strict": None, **tool} if kind == "function" else tool)
        else:
            raise InvalidRequest.about((*place, "type"), f"is {kind!r}; supported are {', '.join(_OWN)}.")
    others = left_out(tools)
    if others and not read.chat:
        text = f"is {others[0]!r}, which needs a service that this server does not have"
        raise InvalidRequest.about(("tools", 0, "type"), f"{text}; supported are {', '.join(_OWN)}.")
    return read


def _read_namespace(read: ToolSet, tool: ToolObject, place: Path) -> None:
    name, inner = tool.get("name"), tool.get("tools")
    if not isinstance(name, str) or not name:
        raise InvalidRequest.about((*place, "name"), "must be the namespace's name.")
    if not isinstance(inner, list):
        raise InvalidRequest.about((*place, "tools"), "must be a list of functions and custom tools.")
    for key in tool:
        if key not in ("type", "name", "description", "tools"):
            raise InvalidRequest.about((*place, key), "is not a field of a namespace.")
    for j, each in enumerate(inner):
        if not isinstance(each, dict) or each.get("type") not in ("function", "custom"):
            raise InvalidRequest.about((*place, "tools", j, "type"), "must be 'function' or 'custom'.")
        _add_tool(read, each, (*place, "tools", j), name)


def _add_tool(read: ToolSet, tool: ToolObject, place: Path, namespace: str | None) -> None:
    kind, name = tool["type"], tool.get("name")
    if not isinstance(name, str):
        raise InvalidRequest.about((*place, "name"), "must be the tool's name.")
    allowed = _FUNCTION if kind == "function" else _CUSTOM
    for key in tool:
        if key not in (*allowed, *_UNUSED):
            raise InvalidRequest.about((*place, key), f"is not a field of a {kind} tool: {', '.join(allowed)}.")
    said = {key: tool[key] for key in allowed if tool.get(key) is not None}
    if kind == "custom" and "format" in said:
        said["format"] = _chat_format(said["format"], (*place, "format"))
    if namespace is not None:
        said["name"] = in_namespace(namespace, name)
        read.namespaces[said["name"]] = (namespace, name)
    read.chat.append({"type": kind, kind: said})
    read.places.append(place)


def _chat_format(value: Any, place: Path) -> Any:
    """{"type": "grammar", "syntax": …, "definition": …}, as the chat endpoint nests it."""
    if not isinstance(value, dict) or value.get("type") not in ("text", "grammar"):
        raise InvalidRequest.about(place, "must be an object of type 'text' or 'grammar'.")
    if value["type"] == "text":
        return {"type": "text"}
    if value.get("syntax") not in ("lark", "regex"):
        raise InvalidRequest.about((*place, "syntax"), "must be 'lark' or 'regex'.")
    if not isinstance(value.get("definition"), str):
        raise InvalidRequest.about((*place, "definition"), "must be the grammar's text.")
    return {"type": "grammar", "grammar": {"syntax": value["syntax"], "definition": value["definition"]}}


def chat_tool_choice(choice: str | Mapping[str, Any] | None, tools: ToolSet) -> str | dict[str, Any] | None:
    """A body's `tool_choice` as the chat endpoint has it. Raises InvalidRequest."""
    place: Path = ("tool_choice",)
    if choice is None or isinstance(choice, str):
        if choice not in (None, *_MODES):
            text = f"must be {', '.join(map(repr, _MODES))}, a tool, or allowed_tools; not {choice!r}."
            raise InvalidRequest.about(place, text)
        return choice
    if choice.get("type") != "allowed_tools":
        return _chosen_tool(place, choice, tools)
    if choice.get("mode") not in ("auto", "required"):
        raise InvalidRequest.about((*place, "mode"), f"must be 'auto' or 'required'; not {choice.get('mode')!r}.")
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not allowed:
        raise InvalidRequest.about((*place, "tools"), "must be a list of tools.")
    kept = [
        _chosen_tool((*place, "tools", i), each, tools)
        for i, each in enumerate(allowed)
        if not (isinstance(each, dict) and each.get("type") in _HOSTED and choice["mode"] == "auto")
    ]
    if not kept:
        return "none"
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": kept}}


def _chosen_tool(place: Path, choice: Any, tools: ToolSet) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in _HOSTED:
        raise InvalidRequest.about((*place, "type"), f"is {kind!r}, which this server cannot call.")
    name = choice.get("name") if isinstance(choice, dict) else None
    if kind not in ("function", "custom") or not isinstance(name, str):
        shape = '{"type": "function", "name": …} or {"type": "custom", "name": …}'
        raise InvalidRequest.about(place, f"must be {shape}.")
    name = in_namespace(choice.get("namespace"), name) if isinstance(choice.get("namespace"), str) else name
    names = [each[each["type"]]["name"] for each in tools.chat]
    if name not in names:
        raise InvalidRequest.about((*place, "name"), f"is {name!r}; tools has {', '.join(names) or 'none'}.")
    kind = tools.chat[names.index(name)]["type"]
    return {"type": kind, kind: {"name": name}}
