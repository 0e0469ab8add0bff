"""Which keywords of a JSON Schema are enforced, by which engine, and what is left for checks: the way from a schema to
a grammar.

What the engines do was measured on documents, not read off their documentation;
tests/constrained/schema/test_keywords.py holds the measurements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..spec import Constraint, ConstraintError, Unenforced
from .check_places import checks_text
from .document import parse_json, refuse
from .empty import refuse_empty
from .lowering.for_xgrammar import lower_for_xgrammar
from .lowering.lower import lower
from .lowering.lowered import EFFORTS, Lowered
from .normal import Normal, parts
from .normalise import normalise
from .validation import Validation

Json = Any

MAX_EMPTY = 20  # definitions without any value that are taken out of a schema
_EMPTY = re.compile(r"nsatisfiable[\s\S]*while processing \S*#/\$defs/(\S+)")


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
    validation = Validation(normal.schema, normal.draft)
    refuse_empty(normal, validation)
    complaint, tried = "", set()
    for lowered in _candidates(constraint, normal, validation):
        grammar = json.dumps(lowered.grammar, separators=(",", ":"), ensure_ascii=False)
        if lowered.grammar is False:
            raise ConstraintError("the schema allows no value at all")
        if grammar in tried:
            continue
        tried.add(grammar)
        grammar, complaint = _attempt_without_empty(grammar, attempt)
        if not complaint:
            return Checked(grammar, checks_text(normal, lowered), sorted(normal.keywords), normal.notes)
    if "nsatisfiable" in complaint:
        raise ConstraintError(f"no value satisfies the schema: {_first_line(complaint)}")
    raise ConstraintError(f"the schema cannot be compiled: {_first_line(complaint)}")


def _attempt_without_empty(grammar: str, attempt: Callable[[str], str]) -> tuple[str, str]:
    """Try a schema; where the engine finds that a definition allows nothing, try it with `false` in its place.

    The engine refuses such a schema as a whole, although nothing may need the definition.
    """
    for tries_left in reversed(range(MAX_EMPTY + 1)):
        complaint = attempt(grammar)
        found = _EMPTY.search(complaint) if tries_left else None
        schema = json.loads(grammar) if found else None
        if not found or not isinstance(schema, dict) or found[1] not in schema.get("$defs", {}):
            return grammar, complaint
        del schema["$defs"][found[1]]
        schema = _with_false(schema, f"#/$defs/{found[1]}")
        if schema is False:
            return grammar, complaint
        grammar = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    raise AssertionError("the last try returns")


def _with_false(part: Json, reference: str) -> Json:
    """A schema with `false` where it refers to `reference`."""
    if isinstance(part, list):
        return [_with_false(each, reference) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("$ref") == reference:
        return False
    return {name: each if name in ("enum", "const") else _with_false(each, reference) for name, each in part.items()}


def _candidates(constraint: Constraint, normal: Normal, validation: Validation) -> Iterator[Lowered]:
    """Schemas for the engine, the one first that leaves least to checks."""
    if constraint.engine == "xgrammar":
        yield lower_for_xgrammar(normal, validation, extras=constraint.extra_properties)
        return
    for extras in (False, True) if not constraint.extra_properties else (True,):
        for effort in EFFORTS:
            yield lower(normal, validation, constraint.max_string, effort, extras=extras)


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
