"""What a request says its completion must match, checked at the door: field by field, before anything is compiled."""

from __future__ import annotations

import json
from typing import Any

from ....constrained.spec import MAX_CHOICES, Constraint, Kind
from ...wire.constraint_body import check_size, json_text
from ...wire.errors import InvalidRequest, Path
from .bodies import check_encodable
from .request_fields import CompletionFields

KINDS: tuple[Kind, ...] = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")
_WITH_JSON = ("json_schema", "json_object", "structural_tag", "tool_calls")
_WITH_SCHEMA = ("json_schema", "structural_tag", "tool_calls")
OPTIONS = ("strict", "grammar_engine", "max_whitespace", "max_string", "extra_properties")


_NOTHING = CompletionFields()


def requested_constraint(fields: CompletionFields, *, with_tools: bool = False) -> Constraint | None:
    """The constraint that a request asks for, if any. Raises InvalidRequest naming the field.

    with_tools: the options are also about the schemas of tools.
    """
    given = given_kinds(fields)
    if len(given) > 1:
        names: list[str | Path] = [piece for kind in given for piece in (" and ", (kind,))]
        raise InvalidRequest(["Give one of ", *names[1:], ", not both."], given[1])
    if not given:
        return None
    constraint = Constraint(
        kind=given[0], body=_body(fields, given[0]), **_options(fields, "tool_calls" if with_tools else given[0])
    )
    check_size(constraint.body, given[0])
    return constraint


def tool_options(fields: CompletionFields) -> Constraint:
    """How the schemas of tools are to be enforced: a constraint that wants only its body. Raises InvalidRequest."""
    return Constraint(kind="tool_calls", **_options(fields, "tool_calls"))


def given_kinds(fields: CompletionFields) -> list[Kind]:
    """Which of the exclusive fields are given."""
    unset = {"json_object": False}
    return [kind for kind in KINDS if getattr(fields, kind) is not unset.get(kind)]


def refuse_options(fields: CompletionFields) -> None:
    """Raise InvalidRequest where an option is given though nothing constrains the completion."""
    for name in OPTIONS:
        if getattr(fields, name) != getattr(_NOTHING, name):
            raise InvalidRequest.about((name,), f"needs a constraint ({', '.join(KINDS)}) or tools to call.")


def _options(fields: CompletionFields, kind: Kind) -> dict[str, Any]:
    """The options of a constraint of this kind; one that it cannot have is refused by its name."""
    if not fields.strict and kind not in _WITH_SCHEMA:
        raise InvalidRequest([("strict",), ": false needs a schema; ", (kind,), " is always enforced whole."], "strict")
    if fields.extra_properties and kind not in _WITH_SCHEMA:
        raise _meaningless("extra_properties", "needs a schema", kind)
    for name in ("max_whitespace", "max_string"):
        if getattr(fields, name) is not None and kind not in _WITH_JSON:
            raise _meaningless(name, "is about JSON", kind)
    return {
        "strict": fields.strict,
        "engine": fields.grammar_engine,
        "extra_properties": fields.extra_properties,
        **{name: value for name in ("max_whitespace", "max_string") if (value := getattr(fields, name)) is not None},
    }


def _meaningless(name: str, why: str, kind: Kind) -> InvalidRequest:
    return InvalidRequest([(name,), f" {why}; it has no meaning for ", (kind,), "."], name)


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
        raise InvalidRequest.about((kind,), f"cannot be written as JSON: {error}.") from None


def _schema_text(text: str) -> str:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        schema = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest.about(("json_schema",), f"is text that is not JSON: {error}.") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest.about(("json_schema",), "must be an object, true or false.")
    return text


def _check_choices(choices: list[str]) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequest.about(("choice",), f"must hold 1 to {MAX_CHOICES} texts, not {len(choices)}.")
    if "" in choices:
        raise InvalidRequest.about(("choice", choices.index("")), "is empty; a completion must have some text.")
