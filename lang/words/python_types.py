"""What a generation must look like: JSON schemas from Python types, and patterns for the simple types."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..errors import ProgramMisuse

PATTERNS: dict[type, tuple[str, tuple[str, ...]]] = {
    # A number ends where the model says something else than a digit: blank and newline are allowed, and end it. It has
    # no more digits than one in JSON can have here, or a model that likes digits would go on to max_tokens.
    int: (r"[+-]?[0-9]{1,19}[ \n]?", (" ", "\n")),
    float: (r"[+-]?[0-9]{1,19}(\.[0-9]{1,10})?[ \n]?", (" ", "\n")),
    bool: (r"(True|False)", ()),
    str: (r'"[\w\s]*"', ()),
}
"""For each dtype of `gen` its regular expression, and the stop strings that go with it."""


def pattern_of(dtype: Any) -> tuple[str, tuple[str, ...]]:
    """The regular expression and the stop strings of a dtype. Raises ProgramMisuse for one that has none."""
    try:
        return PATTERNS[dtype]
    except (KeyError, TypeError):
        allowed = ", ".join(each.__name__ for each in PATTERNS)
        raise ProgramMisuse(f"dtype must be one of {allowed}; not {dtype!r}.") from None


def schema_of(wanted: Any) -> Any:
    """The JSON schema that `gen(json_schema=wanted)` means, as a dict or a bool.

    wanted: a schema (dict, bool, or JSON text), a pydantic model, or a type: a dataclass, a TypedDict, a NamedTuple, a
    msgspec Struct, an Enum, or an annotation of such (`list[Person]`). An object made from a type has no other members
    than the type's, unless the type allows them. Raises ProgramMisuse for anything else.
    """
    if isinstance(wanted, dict | bool):
        return wanted
    if isinstance(wanted, str):
        try:
            return json.loads(wanted)
        except ValueError as error:
            raise ProgramMisuse(f"json_schema is no JSON text: {error}.") from None
    pydantic = getattr(wanted, "model_json_schema", None)
    try:
        return _closed(pydantic() if callable(pydantic) else msgspec.json.schema(wanted))
    except Exception as error:
        text = "json_schema must be a schema, a pydantic model, a dataclass, or another type with a JSON form"
        raise ProgramMisuse(f"{text}; {wanted!r} is none ({error}).") from None


def _closed(schema: Any) -> Any:
    """The schema with members that it does not name forbidden, wherever it does not say anything about them.

    Such members would be allowed; a model that is free to invent some may never come to an end.
    """
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in ("properties", "$defs"):
        if key in schema:
            closed[key] = {name: _closed(each) for name, each in schema[key].items()}
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in schema:
            closed[key] = [_closed(each) for each in schema[key]]
    for key in ("items", "additionalProperties"):
        if key in schema:
            closed[key] = _closed(schema[key])
    if "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
