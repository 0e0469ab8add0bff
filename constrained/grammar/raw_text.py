"""The regular expression of a string that stands as it is, without quotes, up to a mark that it must not hold."""

from __future__ import annotations

from typing import Any

from ..schema.document import refuse
from ..spec import Unenforced
from .formats import FORMAT_CHECKS, FORMAT_LENGTHS, FORMATS
from .lark import literal
from .patterns import PatternError, to_whole

_ANY = r"(?s:.*)"
_KNOWN = {"type", "enum", "const", "pattern", "format", "minLength", "maxLength"}
_LABELS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
_LABELS |= {"$id", "$defs", "definitions", "contentEncoding", "contentMediaType"}

LOOKS = {
    "null": "null",
    "boolean": "true|false",
    "integer": r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?",
    "number": r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?",
    "array": rf"\[{_ANY}",
    "object": rf"\{{{_ANY}",
}
"""What a text that is read as a JSON value of a type looks like, at least."""

SCALARS = {
    "null": "null",
    "boolean": "true|false",
    "integer": "-?(?:0|[1-9][0-9]{0,14})",
    "number": r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,10})?",
}
"""How such values are written where text may stand as well."""


def raw_text(schema: dict[str, Any], end: str, max_string: int, strict: bool, relaxed: list[Unenforced]) -> str:
    """A terminal's text for the strings of `schema` that do not hold `end`. Raises ConstraintError.

    max_string: bounds a string that nothing else bounds; 0 for no bound.
    """
    for keyword in schema.keys() - _KNOWN - _LABELS:
        _leave(keyword, "this model writes strings without quotes, where it cannot be enforced", strict, relaxed)
    wanted = [schema["const"]] if "const" in schema else schema.get("enum")
    if wanted is not None:
        held = [each for each in wanted if isinstance(each, str) and not (end and end in each)]
        if len(held) < len(wanted):
            refuse("enum", "", f"this model ends a text with {end!r}, which one of them holds")
        return f"/{'|'.join(map(literal, held))}/"
    parts = []
    if "pattern" in schema:
        try:
            parts.append(_searching(schema["pattern"]))
        except PatternError as error:
            _leave("pattern", str(error), strict, relaxed)
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if "format" in schema:
        name = schema["format"]
        if name in FORMATS:
            parts.append(FORMATS[name])
        if name in FORMAT_CHECKS or name not in FORMATS:
            relaxed.append(Unenforced("format", "/format", f"the format {name!r} is an annotation here"))
        high = min(filter(None, [FORMAT_LENGTHS.get(name), high]), default=None)
    if high is None and not parts and max_string:
        high = max(max_string, low)
    if low or high is not None:
        parts.append(f"(?s:.{{{low},{'' if high is None else high}}})")
    return " & ".join("/" + part.replace("/", r"\x{2f}") + "/" for part in parts or [_ANY])


def _searching(pattern: str) -> str:
    """A pattern that may match anywhere in the text, for all of it. Raises PatternError."""
    start, stop = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    if "|" in pattern and (start or stop):  # an anchor may belong to one alternative only
        return to_whole(pattern) if start and stop and pattern[1] == "(" else _alternatives(pattern)
    inner = pattern[1 if start else 0 : -1 if stop else None]
    return f"{'' if start else _ANY}(?:{to_whole(inner) if inner else ''}){'' if stop else _ANY}"


def _alternatives(pattern: str) -> str:
    """Alternatives outside of any group, each with its own anchors."""
    if any(char in pattern for char in "()[\\"):
        raise PatternError("alternatives with anchors of their own are not possible in a text without quotes")
    return "|".join(_searching(each) for each in pattern.split("|"))


def _leave(keyword: str, reason: str, strict: bool, relaxed: list[Unenforced]) -> None:
    if strict:
        refuse(keyword, "", reason)
    relaxed.append(Unenforced(keyword, f"/{keyword}", reason))
