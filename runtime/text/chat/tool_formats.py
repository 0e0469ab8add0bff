"""How models write tool calls in their completions: the few formats there are, and which one a chat template means.

Plain data and text only. Each format says what opens and closes a call, so that a grammar can hold a completion to it,
and how calls and tools are shown to a model whose own template cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]

_ABOUT_PROPERTIES = {"patternProperties", "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"}
_ABOUT_PROPERTIES |= {"anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
_ABOUT_PROPERTIES |= {"enum", "const", "$dynamicRef", "$recursiveRef"}

TOOL_FORMATS = ("hermes", "smollm2", "llama3")


@dataclass(frozen=True)
class ToolFormat:
    """One way of writing a call: `opening`, the function's name, `middle`, its arguments as JSON, `closing`.

    trigger: the text at which a call begins; every call starts with it. marked: whether the trigger is a mark of its
    own, or just the start of the call's JSON. example: a call as it is shown to the model.
    """

    name: str
    trigger: str
    opening: str
    middle: str
    closing: str
    marked: bool
    example: str

    def call(self, name: str, arguments: str) -> str:
        """A whole call, as the model would have written it. arguments: JSON text."""
        return f"{self.opening}{name}{self.middle}{arguments}{self.closing}"


HERMES = ToolFormat(
    name="hermes",
    trigger="<tool_call>",
    opening='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    marked=True,
    example='<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>',
)
SMOLLM2 = ToolFormat(
    name="smollm2",
    trigger="<tool_call>",
    opening='<tool_call>[{"name": "',
    middle='", "arguments": ',
    closing="}]</tool_call>",
    marked=True,
    example='<tool_call>[{"name": <function-name>, "arguments": <arguments-object>}]</tool_call>',
)
LLAMA3 = ToolFormat(
    name="llama3",
    trigger='{"name": "',
    opening='{"name": "',
    middle='", "parameters": ',
    closing="}",
    marked=False,
    example='{"name": <function-name>, "parameters": <arguments-object>}',
)
_BY_NAME = {each.name: each for each in (HERMES, SMOLLM2, LLAMA3)}


def tool_format(wanted: str, template: str | None) -> ToolFormat | None:
    """The format of this name; for "auto" the one that a chat template's source means.

    A template that shows no tools leaves the choice to us: SmolLM2's family was trained on its own format, and Hermes'
    is what most others know. None: the template shows tools in a way that is none of these.
    """
    if wanted != "auto":
        return _BY_NAME[wanted]
    source = template or ""
    if not shows_tools(source):
        return SMOLLM2 if "SmolLM" in source else HERMES
    if "<tool_call>" in source and "<function=" not in source:
        return SMOLLM2 if "<tool_call>[" in source else HERMES
    if "<|python_tag|>" in source or ("ipython" in source and '"parameters": ' in source):
        return LLAMA3
    return None


def shows_tools(template: str) -> bool:
    """Whether a template's source does something with the variable `tools`."""
    return re.search(r"\btools\b", template) is not None


def shows_tool_calls(template: str) -> bool:
    """Whether a template's source does something with the tool calls of earlier turns."""
    return "tool_calls" in template


def structural_tag(
    style: ToolFormat,
    tools: Tools,
    allowed: Sequence[str] | None,
    *,
    required: bool,
    parallel: bool,
    extra_properties: bool = False,
) -> Any:
    """The constraint under which a completion calls tools, as plain data (see `constrained.grammar.structural_tag`).

    Free text, until a call begins; then one of the functions with arguments that its parameters' schema accepts.
    allowed: the only functions that may be called; None for all. required: there is no text before the first call.
    extra_properties: as in `parameters_schema`.
    """
    functions = [tool["function"] for tool in tools if allowed is None or tool["function"]["name"] in allowed]
    structures = [
        {
            "begin": f"{style.opening}{function['name']}{style.middle}",
            "schema": parameters_schema(function, extra_properties=extra_properties),
            "end": style.closing,
        }
        for function in functions
    ]
    return {
        "triggers": [style.trigger],
        "structures": structures,
        "at_least_one": required,
        "stop_after_first": not parallel,
    }


def parameters_schema(function: Mapping[str, Any], *, extra_properties: bool = False) -> dict[str, Any]:
    """What a function's arguments must match.

    A function takes none where its schema neither names a property nor says a word about others: that is how clients
    write a function without parameters, and a model that may invent some does. extra_properties: it may all the same.
    """
    parameters = function.get("parameters")
    if parameters is None or (not extra_properties and _names_nothing(parameters, parameters)):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def _names_nothing(schema: Any, root: Any, depth: int = 10) -> bool:
    """Whether a schema lets an object have any properties or none, just because it says nothing about them."""
    if not isinstance(schema, Mapping) or depth == 0 or schema.keys() & _ABOUT_PROPERTIES:
        return False
    if schema.get("type", "object") != "object" or schema.get("properties", {}) != {}:
        return False
    if schema.get("required", []) != [] or schema.get("additionalProperties", False) is not False:
        return False
    parts = schema.get("allOf", [])
    if "$ref" in schema:
        parts = [*parts, _referred_to(schema["$ref"], root)]
    return all(_names_nothing(part, root, depth - 1) for part in parts)


def _referred_to(reference: Any, root: Any) -> Any:
    """What a reference within the schema leads to; None for any other."""
    found = root if str(reference).startswith("#") else None
    for part in str(reference).split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


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
    return (
        "You can call functions. Their signatures are within <tools></tools>, one a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        f"To call one, write its name and its arguments as JSON, like this:\n{style.example}"
    )


def _with_calls_as_text(style: ToolFormat, message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [style.call(*_name_and_arguments(call)) for call in calls]
    content = _text(message.get("content"))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([content, *texts] if content else texts)}


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return str(function.get("name", "")), text or "{}"


def _text(content: Any) -> str:
    """The content of a message as one text; parts that are not text are left for the template's own check."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
