"""What a completion must look like where it may call tools, made of the tools and the model's format: plain data.

See `constrained.grammar.tool_calls` for what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .channels import CHANNELS
from .tool_format import ARGUMENTS, FieldStyle, Parts, ToolFormat, Tools
from .tool_parameters import ParameterKind, allowed_words, plain_scalars, read_parameters, reading, referred_to

_ABOUT_PROPERTIES = {"patternProperties", "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"}
_ABOUT_PROPERTIES |= {"anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
_ABOUT_PROPERTIES |= {"enum", "const", "$dynamicRef", "$recursiveRef"}
_WORDS = {"true": "True", "false": "False", "null": "None"}


class BeyondFormat(ValueError):
    """A function's parameters ask for what this format cannot keep to. index: of the tool among all."""

    def __init__(self, index: int, keywords: Sequence[str]) -> None:
        super().__init__(", ".join(keywords))
        self.index = index


def tool_calls_constraint(
    style: ToolFormat,
    tools: Tools,
    allowed: Sequence[str] | None,
    *,
    required: bool,
    parallel: bool,
    strict: bool = True,
    extra_properties: bool = False,
    token_ids: Mapping[str, int] | None = None,
    answer: Mapping[str, str] | None = None,
    max_string: int = 0,
) -> dict[str, Any]:
    """The body of the constraint under which a completion calls tools.

    style: as `for_vocabulary` made it, with the ids of its marks in `token_ids`. allowed: the only functions that may
    be called; None for all. required: there is no text before the first call. answer: kind and body of what the
    completion has to be where it is no call. extra_properties: as in `parameters_schema`.
    Raises BeyondFormat where `strict`.
    """
    ids = token_ids or {}

    def parts(text: str, name: str = "") -> Parts:
        return style.parts(text, name, ids)

    calls, notes = [], []
    for i, tool in enumerate(tools):
        function = tool["function"]
        if allowed is not None and function["name"] not in allowed:
            continue
        before, after = style.call.split(ARGUMENTS)
        call: dict[str, Any] = {"begin": parts(before, function["name"]), "end": parts(after)}
        schema = parameters_schema(function, extra_properties=extra_properties)
        if style.fields is None:
            call["schema"] = schema
        else:
            call["fields"], beyond = _fields(style.fields, schema)
            if beyond and strict:
                raise BeyondFormat(i, beyond)
            notes += [[keyword, f"/{keyword}", "the model writes arguments one by one"] for keyword in beyond]
        calls.append(call)
    body: dict[str, Any] = {
        "triggers": [parts(each)[0] for each in style.triggers],  # one token, or text
        "calls": calls,
        "opens": [parts(each) for each in style.opens],
        "separator": parts(style.separator),
        "close": parts(style.close),
        "required": required,
        "once": not parallel,
        "max_string": max_string,
        "notes": notes,
    }
    if style.fields is not None:
        body["form"] = _form(style.fields, style, ids)
    if style.channels:
        body |= CHANNELS.frame(style, ids)
    if answer is not None:
        body["answer"] = dict(answer)
    return body


def _form(fields: FieldStyle, style: ToolFormat, ids: Mapping[str, int]) -> dict[str, Any]:
    end = "" if any(char in ids for char in fields.end) else fields.end
    return {
        "open": style.parts(fields.open, "", ids),
        "text_open": style.parts(fields.text, "", ids),
        "text_close": style.parts(fields.text_close, "", ids),
        "json_open": style.parts(fields.json, "", ids),
        "json_close": style.parts(fields.json_close, "", ids),
        "separator": style.parts(fields.separator, "", ids),
        "text_end": end,
    }


def _fields(style: FieldStyle, schema: Mapping[str, Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The fields, and the keywords that they do not keep to."""
    parameters = read_parameters(schema)
    named = sorted(parameters.kinds.items()) if style.by_name else parameters.kinds.items()
    fields = [{"key": key, "required": key in parameters.required, **_field(style, kind)} for key, kind in named]
    return fields, parameters.beyond


def _field(style: FieldStyle, kind: ParameterKind) -> dict[str, Any]:
    words = [_WORDS[each] for each in sorted(allowed_words(kind)) if _WORDS[each] in style.words]
    how = reading(kind, quoted=style.quoted, tells_apart=style.tells_apart)
    if how == "json":
        return {"json": [kind.schema], "words": words}
    if style.tells_apart or how == "text":
        return {"text": list(kind.texts), "json": list(kind.others), "words": words}
    return {
        "text": list(kind.texts),
        "json": [each for each in kind.others if not plain_scalars((each,))],
        "words": words,
        "scalars": plain_scalars(kind.others),
        "not_text": sorted(kind.others_types),
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
        parts = [*parts, referred_to(schema["$ref"], root)]
    return all(_names_nothing(part, root, depth - 1) for part in parts)
