"""Which keywords of a JSON Schema are enforced, by which engine, and what is left for checks: the way from a schema to
a grammar.

What the engines do was measured on documents, not read off their documentation; tests/constrained/test_keywords.py
holds the measurements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .check_places import checks_text
from .schema_document import parse_json, refuse
from .schema_lower import EFFORTS, Lowered, lower
from .schema_lower_xgrammar import lower_for_xgrammar
from .schema_normal import Normal, normalise, parts
from .spec import Constraint, ConstraintError, Unenforced
from .validation import Validation

Json = Any


@dataclass(frozen=True)
class Checked:
    """A schema that a grammar and checks enforce together.

    grammar: a schema for the engine. checks, enforced, relaxed: as in `Compiled`.
    """

    grammar: str
    checks: str
    enforced: list[str]
    relaxed: list[Unenforced]


def check_schema(constraint: Constraint, attempt: Callable[[str], str]) -> Checked:
    """Find what to put into the grammar, for xgrammar if the constraint names it, else for llguidance.

    attempt: tries to compile a schema; the engine's complaint, or "". Raises ConstraintError where there is no way.
    """
    text = constraint.body if constraint.kind == "json_schema" else '{"type":"object"}'
    normal = normalise(parse_json(text, "the schema"), constraint.strict)
    _refuse_loops(normal)
    validation = Validation(normal.schema)
    complaint, tried = "", set()
    for lowered in _candidates(constraint, normal, validation):
        grammar = json.dumps(lowered.grammar, separators=(",", ":"), ensure_ascii=False)
        if lowered.grammar is False:
            raise ConstraintError("the schema allows no value at all")
        if grammar in tried:
            continue
        tried.add(grammar)
        complaint = attempt(grammar)
        if not complaint:
            return Checked(grammar, checks_text(normal, lowered), sorted(normal.keywords), normal.notes)
    if "nsatisfiable" in complaint:
        raise ConstraintError(f"no value satisfies the schema: {_first_line(complaint)}")
    raise ConstraintError(f"the schema cannot be compiled: {_first_line(complaint)}")


def _candidates(constraint: Constraint, normal: Normal, validation: Validation) -> Iterator[Lowered]:
    """Schemas for the engine, the one first that leaves least to checks."""
    if constraint.engine == "xgrammar":
        yield lower_for_xgrammar(normal, validation)
        return
    for effort in EFFORTS:
        yield lower(normal, validation, constraint.max_string, effort)


def _first_line(complaint: str) -> str:
    return complaint.strip().partition("\n")[0][:500]


def _refuse_loops(normal: Normal) -> None:
    """Refuse schemas that refer back to themselves about the same value; that defines nothing."""
    done: set[int] = set()
    for start in parts(normal.schema):
        path: list[int] = []
        todo: list[tuple[Json, bool]] = [(start, False)]
        while todo:
            part, leaving = todo.pop()
            if leaving:
                done.add(path.pop())
            elif isinstance(part, dict) and id(part) not in done:
                if id(part) in path:
                    refuse(
                        "$ref",
                        normal.pointer(part) + ("/$ref" if "$ref" in part else ""),
                        "it leads back to itself about the same value, which defines nothing",
                    )
                path.append(id(part))
                todo.append((part, True))
                todo += [(each, False) for each in _same_value(normal, part)]


def _same_value(normal: Normal, part: dict[str, Json]) -> list[Json]:
    """The schemas inside `part` that are about the same value as it is."""
    found = [normal.deref(part)] if "$ref" in part else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        found += part.get(keyword, [])
    found += part.get("dependentSchemas", {}).values()
    return found + [part[keyword] for keyword in ("not", "if", "then", "else") if keyword in part]
