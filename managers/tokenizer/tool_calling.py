"""Tool calls between the messages and the text: what a completion must match to call tools, and the calls it makes."""

from __future__ import annotations

import re
import uuid

import msgspec

from ...constrained.spec import Constraint
from ...runtime.text.chat.tool_calls import ToolCallParser
from ...runtime.text.chat.tool_formats import TOOL_FORMATS, ToolFormat, structural_tag
from ..wire.answers import Finish, ToolCallPiece
from ..wire.constraint_body import check_size, json_text
from ..wire.errors import InvalidRequest, Path
from ..wire.requests import Submit

LONGEST_COMPLAINT = 500  # it may quote what it complains of
_STRUCTURE = re.compile(r"structures\[(\d+)\]: ")


def calls_tools(submit: Submit) -> bool:
    """Whether the completion of this request may call tools."""
    return submit.chat is not None and submit.chat.tool_choice != "none"


def constraint_with_tools(submit: Submit, style: ToolFormat | None) -> Constraint | None:
    """What the completion must match, tool calls as this model writes them. Raises InvalidRequest.

    A function that says `"strict": false` relaxes the schemas of all: there is one grammar.
    """
    constraint, chat = submit.constraint, submit.chat
    if constraint is None or chat is None or not calls_tools(submit):
        return constraint
    if style is None:
        text = ": this model's chat template has a format for tool calls that is not supported; start the engine with "
        raise InvalidRequest([("tools",), f"{text}tool_format set to {' or '.join(TOOL_FORMATS)}."], "tools")
    tools = chat.tools or []
    required, parallel = chat.tool_choice == "required", chat.parallel_tool_calls
    extra = constraint.extra_properties
    tag = structural_tag(style, tools, chat.allowed, required=required, parallel=parallel, extra_properties=extra)
    strict = constraint.strict and all(tool["function"].get("strict") is not False for tool in tools)
    body = json_text(tag)
    check_size(body, "tools")
    return msgspec.structs.replace(constraint, body=body, strict=strict)


def complaint_about(submit: Submit, constraint: Constraint, text: str) -> InvalidRequest:
    """A compiler's complaint in terms of the request: its structures are the request's tools, in their order."""
    path: Path = (constraint.kind,)
    if calls_tools(submit):
        path, chat = ("tools",), submit.chat
        named = _STRUCTURE.match(text)
        if named is not None and chat is not None and chat.tools:
            names = [tool["function"]["name"] for tool in chat.tools]
            index = [i for i, name in enumerate(names) if chat.allowed is None or name in chat.allowed][int(named[1])]
            path, text = ("tools", index, "function", "parameters"), text[named.end() :]
    text = text if len(text) <= LONGEST_COMPLAINT else f"{text[:LONGEST_COMPLAINT]}…"
    return InvalidRequest([path, f": {text}{'' if text.endswith('.') else '.'}"], path)


class CallOutput:
    """The calls of one completion, as its text comes."""

    def __init__(self, style: ToolFormat, submit: Submit) -> None:
        tools = submit.chat.tools if submit.chat is not None else None
        self._parser = ToolCallParser(style, {tool["function"]["name"] for tool in tools or []})

    def take(self, text: str, finish: Finish | None) -> tuple[str, list[ToolCallPiece], Finish | None]:
        """The text before the calls, what is new of the calls, and the end: "tool_calls" where it ends after one."""
        text, pieces = self._parser.push(text)
        if finish is not None:
            rest, more = self._parser.flush()
            text, pieces = text + rest, pieces + more
            if finish.reason == "stop" and self._parser.called:
                finish = msgspec.structs.replace(finish, reason="tool_calls")
        if self._parser.over and (finish is None or finish.reason == "length"):
            finish = Finish("tool_calls")
        return text, [ToolCallPiece(p.index, p.arguments, _new_id() if p.name else "", p.name) for p in pieces], finish


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex}"
