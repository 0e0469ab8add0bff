"""Compiles constraints. It may take long on hostile input: callers run it where it can be stopped.

The same constraint and vocabulary give the same result in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .engines import xgrammar_compiler
from .grammar.ebnf import check_ebnf, ebnf_to_lark
from .grammar.lark import json_grammar, lark_grammar, literal, regex_terminal, whole_pattern
from .grammar.structural_tag_grammar import compile_structural_tag
from .grammar.tool_calls_grammar import compile_tool_calls
from .schema.check import Checked, check_schema
from .schema.document import parse_json
from .spec import (
    MAX_CHOICES,
    MAX_CONSTRAINT_BYTES,
    MAX_STRING,
    MAX_WHITESPACE,
    Compiled,
    Constraint,
    ConstraintError,
    EngineName,
    constraint_key,
)

if TYPE_CHECKING:
    from .vocabulary import Vocabulary


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary, key: str = "") -> Compiled:
    """Check and compile. Raises ConstraintError, whose message is for the user, where the constraint is refused.

    key: the constraint's, where the caller knows it already; see `spec.constraint_key`.

    "auto" is llguidance: with checks beside it, it enforces all that xgrammar does and more, and compiles faster.
    """
    _check_limits(constraint)
    compiled = _by_xgrammar if constraint.engine == "xgrammar" else _by_llguidance
    return msgspec.structs.replace(compiled(constraint, vocabulary), key=key or constraint_key(constraint))


def _check_limits(constraint: Constraint) -> None:
    if not 0 <= constraint.max_whitespace <= MAX_WHITESPACE:
        raise ConstraintError(f"max_whitespace must be from 0 to {MAX_WHITESPACE}, not {constraint.max_whitespace}")
    if not 0 <= constraint.max_string <= MAX_STRING:
        raise ConstraintError(f"max_string must be from 0 (no bound) to {MAX_STRING}, not {constraint.max_string}")
    try:
        size = len(constraint.body.encode())
    except UnicodeEncodeError as error:
        raise ConstraintError(f"the constraint's text cannot be encoded: {error.reason}") from None
    if size > MAX_CONSTRAINT_BYTES:
        raise ConstraintError(f"the constraint has {size} bytes; at most {MAX_CONSTRAINT_BYTES} are allowed")


def _by_llguidance(constraint: Constraint, vocabulary: Vocabulary) -> Compiled:
    body = constraint.body

    def attempt(grammar: str) -> str:
        return complaint(grammar, vocabulary)

    match constraint.kind:
        case "json_schema" | "json_object":
            checked = check_schema(constraint, lambda grammar: attempt(json_grammar(grammar, constraint)))
            return _compiled("llguidance", json_grammar(checked.grammar, constraint).encode(), checked)
        case "structural_tag":
            tag = compile_structural_tag(constraint, attempt)
            grammar, checked = tag.grammar, Checked(tag.grammar, tag.checks, tag.enforced, tag.relaxed)
        case "tool_calls":
            calls = compile_tool_calls(constraint, attempt)
            grammar, checked = calls.grammar, Checked(calls.grammar, calls.checks, calls.enforced, calls.relaxed)
        case "regex":
            grammar, checked = lark_grammar(f"start: {regex_terminal(body)}"), None
        case "choice":
            grammar, checked = lark_grammar(f"start: /{'|'.join(map(literal, _choices(body)))}/"), None
        case "ebnf":
            grammar, checked = lark_grammar(ebnf_to_lark(body)), None
    said = attempt(grammar)
    if said:
        raise ConstraintError(f"the {constraint.kind} cannot be compiled: {said.strip()[:500]}")
    return _compiled("llguidance", grammar.encode(), checked)


def _by_xgrammar(constraint: Constraint, vocabulary: Vocabulary) -> Compiled:
    body, checked = constraint.body, None
    match constraint.kind:
        case "json_schema" | "json_object":
            payloads: list[bytes] = []

            def attempt(schema: str) -> str:
                payloads.append(xgrammar_compiler.compile_schema(schema, constraint.max_whitespace, vocabulary))
                return ""

            checked = check_schema(constraint, attempt)
            payload = payloads[-1]
        case "regex":
            payload = xgrammar_compiler.compile_regex(whole_pattern(body), vocabulary)
        case "choice":
            payload = xgrammar_compiler.compile_choice(_choices(body), vocabulary)
        case "ebnf":
            check_ebnf(body)
            payload = xgrammar_compiler.compile_ebnf(body, vocabulary)
        case "structural_tag":
            raise ConstraintError("structural tags are not compiled with xgrammar; use llguidance or auto")
        case "tool_calls":
            raise ConstraintError("tool calls are not compiled with xgrammar; use llguidance or auto")
    return _compiled("xgrammar", payload, checked)


def _compiled(engine: EngineName, payload: bytes, checked: Checked | None) -> Compiled:
    """Its key is not set yet."""
    if checked is None:
        return Compiled("", engine, payload)
    return Compiled("", engine, payload, checked.checks, checked.enforced, checked.relaxed)


def _choices(body: str) -> list[str]:
    choices = parse_json(body, "the choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise ConstraintError("choice must be a JSON list of texts, at least one, none of them empty")
    if len(choices) > MAX_CHOICES:
        raise ConstraintError(f"choice has {len(choices)} texts; at most {MAX_CHOICES} are allowed")
    return choices


def complaint(grammar: str, vocabulary: Vocabulary) -> str:
    """What llguidance says against a grammar; "" where it can be used."""
    from .engines.llguidance import LLGuidanceTemplate

    try:
        matcher = LLGuidanceTemplate(grammar.encode(), vocabulary).start()
    except ConstraintError as error:
        return str(error)
    return "" if matcher.mask().any() else "unsatisfiable: it allows no text at all"
