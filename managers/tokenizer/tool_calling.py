"""Tool calls between the messages and the text: what a completion must match to call tools, and the calls it makes."""

from __future__ import annotations

import re
import secrets
import string
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...constrained.spec import Constraint
from ...runtime.text.chat.tools.call_parser import CallPiece, Parsed, ToolCallParser
from ...runtime.text.chat.tools.channels import ChannelParser
from ...runtime.text.chat.tools.custom_input import CustomInput, input_schema
from ...runtime.text.chat.tools.known_formats import TOOL_FORMATS
from ...runtime.text.chat.tools.tool_constraint import BeyondFormat, tool_calls_constraint
from ...runtime.text.chat.tools.tool_format import ToolFormat, without_stand_ins
from ...runtime.text.tokenizers.base import Tokenizer
from ..wire.answers import Finish, ToolCallPiece
from ..wire.constraint_body import check_size, json_text
from ..wire.errors import InvalidRequest, Path
from ..wire.requests import CUSTOM_INPUT, Submit

LONGEST_COMPLAINT = 500  # it may quote what it complains of
_PLAIN = re.compile(r"(?:[^\\^$.|?*+()\[\]{}]|\\[^a-zA-Z0-9])*(?![?*+{])")
"""The start of a pattern that is plain text; its last character may not be repeated."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS, _GROUP = re.compile(r"\[\^?\]?[^\]]*\]"), re.compile(r"\([^()]*\)")
_CALL = re.compile(r"calls\[(\d+)\]: ")
_SHORT = 9  # what Mistral's templates ask of an id: so many letters and digits
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ModelTools:
    """How a model writes its calls, in its own vocabulary.

    stand_ins: what stands for the format's control tokens in a completion's text, by their ids. texts: what they are.
    """

    style: ToolFormat
    token_ids: Mapping[str, int] = field(default_factory=dict)
    stand_ins: Mapping[int, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


def model_tools(style: ToolFormat | None, tokenizer: Tokenizer) -> ModelTools | None:
    """The format as this tokenizer's model writes it; None for no format."""
    if style is None:
        return None
    control = {tokenizer.token_text(i): i for i in sorted(tokenizer.control_ids, reverse=True)}
    own, token_ids = style.for_vocabulary({text: i for text, i in control.items() if text}, list(tokenizer.eos_ids))
    stand_ins = {token_id: char for char, token_id in token_ids.items()}
    texts = {char: tokenizer.token_text(token_id) for char, token_id in token_ids.items()}
    return ModelTools(own, token_ids, stand_ins, texts)


def calls_tools(submit: Submit) -> bool:
    """Whether the completion of this request may call tools."""
    return submit.chat is not None and submit.chat.tool_choice != "none"


def call_output(submit: Submit, model: ModelTools | None) -> CallOutput | None:
    """What reads the calls of one completion, where it may have some, or is written in channels."""
    if model is None or submit.chat is None or not (calls_tools(submit) or model.style.channels):
        return None
    return CallOutput(model, submit)


def constraint_with_tools(submit: Submit, model: ModelTools | None) -> Constraint | None:
    """What the completion must match, tool calls as this model writes them. Raises InvalidRequest.

    Where the request has a constraint of its own, the completion matches that or calls tools; where it must call
    tools, that constraint does not apply. A regex that spells out a call from its first character on stands alone: who
    sends it says what is called, and with what. A function that says `"strict": false` relaxes the schemas of all:
    there is one grammar.
    """
    constraint, chat = submit.constraint, submit.chat
    if constraint is None or chat is None or not calls_tools(submit):
        return constraint
    if model is None:
        text = ": this model's chat template has a format for tool calls that is not supported; start the engine with "
        raise InvalidRequest([("tools",), f"{text}tool_format set to one of {', '.join(TOOL_FORMATS)}."], "tools")
    if constraint.kind == "regex" and _spells_a_call(constraint.body, model):
        return constraint
    tools = [_with_input(tool, submit) for tool in chat.tools or []]
    strict = constraint.strict and all(tool["function"].get("strict") is not False for tool in tools)
    has_answer = constraint.kind != "tool_calls" and chat.tool_choice != "required"
    try:
        said = tool_calls_constraint(
            model.style,
            tools,
            chat.allowed,
            required=chat.tool_choice == "required",
            parallel=chat.parallel_tool_calls,
            strict=strict,
            extra_properties=constraint.extra_properties,
            token_ids=model.token_ids,
            answer={"kind": constraint.kind, "body": constraint.body} if has_answer else None,
            max_string=chat.max_string,
        )
    except BeyondFormat as error:
        path: Path = ("tools", error.index, "function", "parameters")
        text = (
            f" has {error} at its top; this model writes arguments one by one, where only properties and required are "
            'enforced. "strict": false lets it pass.'
        )
        raise InvalidRequest([path, text], path) from None
    body = json_text(said)
    check_size(body, "tools")
    return msgspec.structs.replace(constraint, kind="tool_calls", body=body, strict=strict)


def _spells_a_call(regex: str, model: ModelTools) -> bool:
    """Whether all that this pattern matches begins as calls do; marks that are control tokens no text spells."""
    plain = _PLAIN.match(regex)
    begins = _ESCAPED.sub(r"\1", plain[0]) if plain is not None else ""
    bare, around = "", _CLASS.sub("", _ESCAPED.sub("", regex))
    while bare != around:
        bare, around = around, _GROUP.sub("", around)
    marks = [each for each in model.style.triggers if each not in model.token_ids]
    return "|" not in bare and any(begins.startswith(each) for each in marks)


def _with_input(tool: dict[str, Any], submit: Submit) -> dict[str, Any]:
    """A custom tool with its grammar in the schema of its one parameter."""
    function = tool["function"]
    wanted = submit.chat.custom.get(function["name"]) if submit.chat is not None else None
    if wanted is None:
        return tool
    schema = input_schema(CUSTOM_INPUT, wanted.syntax, wanted.definition)
    return {**tool, "function": {**function, "parameters": schema}}


def complaint_about(submit: Submit, constraint: Constraint, text: str) -> InvalidRequest:
    """A compiler's complaint in terms of the request: its calls are of the request's tools, in their order."""
    path: Path = (constraint.kind,)
    chat = submit.chat
    if chat is not None and calls_tools(submit) and constraint.kind == "tool_calls":
        path = ("tools",)
        if text.startswith("answer: ") and submit.constraint is not None:
            path, text = (submit.constraint.kind,), text.removeprefix("answer: ")
        named = _CALL.match(text)
        if named is not None and chat.tools:
            names = [tool["function"]["name"] for tool in chat.tools]
            index = [i for i, name in enumerate(names) if chat.allowed is None or name in chat.allowed][int(named[1])]
            of = ("custom", "format") if names[index] in chat.custom else ("function", "parameters")
            path, text = ("tools", index, *of), text[named.end() :]
    text = text if len(text) <= LONGEST_COMPLAINT else f"{text[:LONGEST_COMPLAINT]}…"
    return InvalidRequest([path, f": {text}{'' if text.endswith('.') else '.'}"], path)


class CallOutput:
    """The calls of one completion, as its text comes; and its thinking, where that is in a channel of its own."""

    def __init__(self, model: ModelTools, submit: Submit) -> None:
        chat = submit.chat
        tools = chat.tools if chat is not None and calls_tools(submit) else None
        functions = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools or []}
        make = ChannelParser if model.style.channels else ToolCallParser
        self._parser = make(model.style, functions)
        self.stand_ins = model.stand_ins
        self._short_ids = model.style.short_ids
        self._custom = chat.custom if chat is not None else {}
        self._inputs: dict[int, CustomInput] = {}
        self._shown = {} if submit.skip_special_tokens else model.texts
        self.reasoning = ""

    def take(self, text: str, finish: Finish | None) -> tuple[str, list[ToolCallPiece], Finish | None]:
        """The text before the calls, what is new of the calls, and the end: "tool_calls" where it ends after one.

        `reasoning` is then what is new of the thinking.
        """
        parsed = self._parser.push(text)
        if finish is not None:
            rest = self._parser.flush()
            parsed = Parsed(parsed.text + rest.text, parsed.calls + rest.calls, parsed.reasoning + rest.reasoning)
            if finish.reason == "stop" and self._parser.called:
                finish = msgspec.structs.replace(finish, reason="tool_calls")
        if self._parser.over and (finish is None or finish.reason == "length"):
            finish = Finish("tool_calls")
        self.reasoning = without_stand_ins(parsed.reasoning, self._shown)
        return without_stand_ins(parsed.text, self._shown), [self._piece(each) for each in parsed.calls], finish

    def _piece(self, piece: CallPiece) -> ToolCallPiece:
        arguments = without_stand_ins(piece.arguments)
        if piece.name in self._custom:
            self._inputs[piece.index] = CustomInput()
        reader = self._inputs.get(piece.index)
        if reader is not None:
            arguments = reader.push(arguments)
        call_id = (piece.id or self._new_id()) if piece.name else ""
        return ToolCallPiece(piece.index, arguments, call_id, piece.name, reader is not None)

    def _new_id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(_SHORT))
        return f"call_{uuid.uuid4().hex}"
