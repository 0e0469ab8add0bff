"""What a completion that may call tools looks like, as plain data: the body of a "tool_calls" constraint.

The completion is text, or calls (after text, where that stands free), or the answer that stands in place of the text.
Marks are `Parts`: text, ids of control tokens, and patterns, one after the other. Only who knows the model's
vocabulary may name control tokens, so no request has such a body: it is made of a request's tools.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..schema.document import parse_json
from ..spec import ConstraintError, Unenforced

Schema = dict[str, Any] | bool
LARK = "x-lark"
"""A keyword of a string's schema: the Lark grammar that the string matches. It stands alone, beside the type."""


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression, in the engine's own dialect, for what is written at its place."""

    regex: str


Part = str | int | Pattern
Parts = list[Part]


class MarkedText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Free text between two marks."""

    begin: Parts = []
    end: Parts = []


class AnswerConstraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the text must match; kind and body as in `Constraint`."""

    kind: Literal["json_schema", "json_object", "regex", "ebnf", "choice"]
    body: str = ""


class FieldForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one argument is written: open, its key, then a value between its marks; `separator` between two of them.

    text_end: what text, which is written as it is, may not hold.
    """

    open: Parts
    text_open: Parts
    text_close: Parts
    json_open: Parts
    json_close: Parts
    separator: Parts = []
    text_end: str = ""


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One argument of a call that is written field by field.

    text: the schemas of strings that it may be. json: of other values. words: what such values are also written as.
    scalars: the JSON types of other values that are not told from text by how they begin, in place of their schemas.
    not_text: the JSON types that text may not look like, since it would be read as such a value.
    """

    key: str
    required: bool
    text: list[dict[str, Any]] = []
    json: list[Schema] = []
    words: list[str] = []
    scalars: list[Literal["null", "boolean", "integer", "number"]] = []
    not_text: list[str] = []


class CallForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function: exactly one of schema (of its arguments as one JSON object) and fields."""

    begin: Parts
    end: Parts
    schema: Schema | None = None
    fields: list[Parameter] | None = None


class ToolCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a "tool_calls" constraint.

    triggers: how calls begin, the text or token by which they are told from free text. opens: what may stand before
    the first call; an empty one means nothing. separator, close: between calls, and after the last.
    lead: what may come before everything else, any number of times. text: the marks around the text.
    answer: what the text must match; then calls come without text before them.
    required: a call must come, and at once. once: no second one. max_string: as in `Constraint`, for arguments.
    form: of arguments written one by one. notes: what of the functions' schemas was left out already.
    """

    triggers: list[str | int]
    calls: list[CallForm]
    opens: list[Parts]
    separator: Parts = []
    close: Parts = []
    lead: list[MarkedText] = []
    text: MarkedText = MarkedText()
    answer: AnswerConstraint | None = None
    required: bool = False
    once: bool = False
    max_string: int = 0
    form: FieldForm | None = None
    notes: list[Unenforced] = []


def read_tool_calls(body: str) -> ToolCalls:
    """Raises ConstraintError for what is no such body."""
    try:
        return msgspec.convert(parse_json(body, "the tool calls"), ToolCalls)
    except msgspec.ValidationError as error:
        raise ConstraintError(f"the tool calls are wrong: {error}") from None


def joined(*several: Parts) -> Parts:
    """The parts as one list, neighbouring texts as one and nothing empty."""
    made: Parts = []
    for part in (part for parts in several for part in parts if part != ""):
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += part
        else:
            made.append(part)
    return made


def after(trigger: str | int, parts: Parts) -> Parts | None:
    """What of `parts` (joined ones) comes after the trigger; None where they do not hold it.

    Space may stand before it, which is free text's.
    """
    for i, part in enumerate(parts[:2]):
        if isinstance(trigger, str) and isinstance(part, str) and part.lstrip().startswith(trigger):
            return joined([part.lstrip()[len(trigger) :]], parts[i + 1 :])
        if part == trigger and isinstance(trigger, int):
            return parts[i + 1 :]
        if not isinstance(part, str) or part.strip():
            return None
    return None
