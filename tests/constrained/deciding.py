"""What the tests of schemas and grammars share: a vocabulary of single bytes, and verdicts on documents."""

from __future__ import annotations

import json
from typing import Any

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.acceptance import accepts, accepts_document
from sapwood.constrained.spec import Compiled, Constraint, Kind
from sapwood.constrained.vocabulary import Vocabulary

OCTETS = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], [256], [], lambda text: list(text.encode()))


def constraint_of(schema: Any, **options: Any) -> Constraint:
    """Unless the options say otherwise, documents may have whatever properties the schema lets them have."""
    return Constraint("json_schema", json.dumps(schema), **{"extra_properties": True, **options})


def compiled(schema: Any, **options: Any) -> Compiled:
    return compile_constraint(constraint_of(schema, **options), OCTETS)


def compact(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def leaves_to_checks(made: Compiled) -> bool:
    """Whether a part of the schema is left to checks: more than that names are compared, so that none comes twice."""
    return bool(made.checks) and bool(json.loads(made.checks)["checked"])


def verdicts(schema: Any, documents: list[Any], **options: Any) -> list[bool]:
    """Which documents a schema accepts, in any order of properties."""
    constraint = constraint_of(schema, **options)
    made = compile_constraint(constraint, OCTETS)
    return [accepts_document(constraint, made, OCTETS, compact(document)) for document in documents]


def accepted(kind: Kind, body: str, texts: list[str], **options: Any) -> list[str]:
    """Those of the texts that a constraint accepts as they are; options as in `constraint_of`."""
    made = compile_constraint(Constraint(kind, body, **{"extra_properties": True, **options}), OCTETS)
    return [text for text in texts if accepts(made, OCTETS, text)]
