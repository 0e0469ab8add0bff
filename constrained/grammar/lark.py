"""Pieces of grammars in the form that llguidance takes: Lark with regular expressions in Rust's dialect, and JSON
schemas.
"""

from __future__ import annotations

import json
from typing import Any

from ..spec import Constraint, ConstraintError
from .patterns import PatternError, to_whole

_WHITESPACE = r"[\x20\x0A\x0D\x09]"


def lark_grammar(rules: str) -> str:
    """A whole grammar from its rules, of which `start` is the first."""
    return json.dumps({"grammars": [{"lark_grammar": f"%llguidance {{}}\n{rules}\n"}]}, ensure_ascii=False)


def json_grammar(schema: str, constraint: Constraint) -> str:
    """A whole grammar from a schema (as JSON text), with the constraint's whitespace."""
    return json.dumps({"grammars": [{"json_schema": with_whitespace(schema, constraint)}]}, ensure_ascii=False)


def with_whitespace(schema: str, constraint: Constraint, *, spaced: bool = False) -> dict[str, Any]:
    """A schema (as JSON text) that says how much whitespace there may be between two tokens of JSON.

    spaced: where there may be none, one space after each comma and colon all the same.
    """
    options: dict[str, Any] = {"whitespace_flexible": False}
    if spaced:
        options |= {"item_separator": ", ", "key_separator": ": "}
    if constraint.max_whitespace:
        options = {"whitespace_pattern": f"{_WHITESPACE}{{1,{constraint.max_whitespace}}}"}
    parsed = json.loads(schema)
    return {"x-guidance": options, **({} if parsed is True else parsed)}


def literal(text: str) -> str:
    """A text as a part of a regular expression in a Lark grammar."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def text_terminal(text: str) -> str:
    return f"/{literal(text)}/"


def regex_terminal(pattern: str) -> str:
    """A pattern that the whole text must match. Raises ConstraintError."""
    return "/" + whole_pattern(pattern).replace("/", r"\x{2f}") + "/"


def whole_pattern(pattern: str) -> str:
    """A pattern for the whole text, in the engine's dialect. Raises ConstraintError."""
    if not pattern:
        raise ConstraintError("the regex is empty")
    try:
        return to_whole(pattern)
    except PatternError as error:
        raise ConstraintError(f"the regex {pattern[:200]!r} is refused: {error}") from None
