"""What a request says its completion must match, checked at the door: field by field, before anything is compiled."""

from __future__ import annotations

import json
from typing import Any

from ...constrained.spec import MAX_CHOICES, Constraint, Kind
from ..wire.constraint_body import check_size, json_text
from ..wire.errors import InvalidRequest
from .bodies import check_encodable
from .request_fields import CompletionFields

KINDS: tuple[Kind, ...] = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")
_WITH_JSON = ("json_schema", "json_object", "structural_tag")
_WITH_SCHEMA = ("json_schema", "structural_tag")
OPTIONS = ("strict", "grammar_engine", "max_whitespace", "max_string", "extra_properties")


_NOTHING = CompletionFields()


def requested_constraint(fields: CompletionFields) -> Constraint | None:
    """The constraint that a request asks for, if any. Raises InvalidRequest naming the field."""
    given = given_kinds(fields)
    if len(given) > 1:
        raise InvalidRequest(f"Give one of {' and '.join(given)}, not both.", given[1])
    if not given:
        return None
    constraint = Constraint(kind=given[0], body=_body(fields, given[0]), **_options(fields, given[0]))
    check_size(constraint.body, given[0])
    return constraint


def tool_options(fields: CompletionFields) -> Constraint:
    """How the schemas of tools are to be enforced: a constraint that wants only its body. Raises InvalidRequest."""
    return Constraint(kind="structural_tag", **_options(fields, "structural_tag"))


def given_kinds(fields: CompletionFields) -> list[Kind]:
    """Which of the exclusive fields are given."""
    unset = {"json_object": False}
    return [kind for kind in KINDS if getattr(fields, kind) is not unset.get(kind)]


def refuse_options(fields: CompletionFields) -> None:
    """Raise InvalidRequest where an option is given though nothing constrains the completion."""
    for name in OPTIONS:
        if getattr(fields, name) != getattr(_NOTHING, name):
            raise InvalidRequest(f"{name} needs a constraint ({', '.join(KINDS)}) or tools to call.", name)


def _options(fields: CompletionFields, kind: Kind) -> dict[str, Any]:
    """The options of a constraint of this kind; one that it cannot have is refused by its name."""
    if not fields.strict and kind not in _WITH_SCHEMA:
        raise InvalidRequest(f"strict: false needs a schema; {kind} is always enforced whole.", "strict")
    if fields.extra_properties and kind not in _WITH_SCHEMA:
        raise InvalidRequest(f"extra_properties needs a schema; it has no meaning for {kind}.", "extra_properties")
    for name in ("max_whitespace", "max_string"):
        if getattr(fields, name) is not None and kind not in _WITH_JSON:
            raise InvalidRequest(f"{name} is about JSON; it has no meaning for {kind}.", name)
    return {
        "strict": fields.strict,
        "engine": fields.grammar_engine,
        "extra_properties": fields.extra_properties,
        **{name: value for name in ("max_whitespace", "max_string") if (value := getattr(fields, name)) is not None},
    }


def _body(fields: CompletionFields, kind: Kind) -> str:
    """The constraint in the form that `Constraint.body` has for its kind."""
    value = getattr(fields, kind)
    check_encodable({kind: value})
    if kind == "json_object":
        return ""
    if kind == "json_schema" and isinstance(value, str):
        return _schema_text(value)
    if kind == "choice":
        _check_choices(value)
    try:
        return value if isinstance(value, str) else json_text(value)
    except ValueError as error:
        raise InvalidRequest(f"{kind} cannot be written as JSON: {error}.", kind) from None


def _schema_text(text: str) -> str:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        schema = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"json_schema is text that is not JSON: {error}.", "json_schema") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("json_schema must be an object, true or false.", "json_schema")
    return text


def _check_choices(choices: list[str]) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequest(f"choice must hold 1 to {MAX_CHOICES} texts, not {len(choices)}.", "choice")
    if "" in choices:
        place = f"choice[{choices.index('')}]"
        raise InvalidRequest(f"{place} is empty; a completion must have some text.", place)
