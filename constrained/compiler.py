"""Compiles constraints. It may take long on hostile input: callers run it where it can be stopped.

The same constraint and vocabulary give the same result in every process.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from .schema_check import check_schema
from .spec import Compiled, Constraint, ConstraintError

if TYPE_CHECKING:
    from llguidance import LLParserLimits

    from .vocabulary import Vocabulary

WHITESPACE = r"[\x20\x0A\x0D\x09]"
MAX_WHITESPACE = 1000


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Compiled:
    """Check and compile. Raises ConstraintError, whose message is for the user, where the constraint is refused."""
    if not 0 <= constraint.max_whitespace <= MAX_WHITESPACE:
        raise ConstraintError(f"max_whitespace must be from 0 to {MAX_WHITESPACE}, not {constraint.max_whitespace}")
    if constraint.max_string < 0:
        raise ConstraintError(f"max_string must be 0 (no bound) or more, not {constraint.max_string}")
    match constraint.kind:
        case "json_schema" | "json_object":
            return _schema(constraint, vocabulary)
        case other:
            raise ConstraintError(f"no {other}")


def constraint_key(constraint: Constraint) -> str:
    """A hash of all that a constraint says."""
    return hashlib.sha256(msgspec.json.encode(constraint)).hexdigest()


def _schema(constraint: Constraint, vocabulary: Vocabulary) -> Compiled:
    checked = check_schema(constraint, lambda grammar: complaint(json_grammar(grammar, constraint), vocabulary))
    payload = json_grammar(checked.grammar, constraint)
    return Compiled(
        constraint_key(constraint), "llguidance", payload.encode(), checked.checks, checked.enforced, checked.relaxed
    )


def json_grammar(schema: str, constraint: Constraint) -> str:
    """llguidance's grammar of a schema, with the constraint's whitespace."""
    return json.dumps({"grammars": [{"json_schema": with_whitespace(json.loads(schema), constraint)}]}, ensure_ascii=False)


def with_whitespace(schema: Any, constraint: Constraint) -> dict[str, Any]:
    options: dict[str, Any] = {"whitespace_flexible": False}
    if constraint.max_whitespace:
        options = {"whitespace_pattern": f"{WHITESPACE}{{1,{constraint.max_whitespace}}}"}
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"x-guidance": options, **schema}


def complaint(grammar: str, vocabulary: Vocabulary) -> str:
    """What llguidance says against a grammar; "" where it can be used."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary.llguidance_tokenizer, grammar, log_level=0, limits=parser_limits())
    return matcher.get_error() if matcher.is_error() else ""


def parser_limits() -> LLParserLimits:
    """What a llguidance matcher may use; workers start theirs with the same."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000)
