"""Compiles structural tags to one Lark grammar for llguidance, and the checks of their spans."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ..schema.check import check_schema
from ..spec import Constraint, ConstraintError, Unenforced
from .ebnf import ebnf_to_lark
from .lark import json_grammar, lark_grammar, literal, regex_terminal, text_terminal, with_whitespace
from .structural_tag import StructuralTag, Structure, read_structural_tag, trigger_of


@dataclass
class TagGrammar:
    """grammar: for llguidance. The rest is as in `Compiled`."""

    grammar: str
    checks: str = ""
    enforced: list[str] = field(default_factory=list)
    relaxed: list[Unenforced] = field(default_factory=list)


def compile_structural_tag(constraint: Constraint, attempt: Callable[[str], str]) -> TagGrammar:
    """attempt: tries to compile a grammar; the engine's complaint, or "". Raises ConstraintError."""
    tag = read_structural_tag(constraint.body)
    made = TagGrammar("")
    bodies, spans = [], []
    for i, structure in enumerate(tag.structures):
        try:
            rules, checks = _body(constraint, structure, f"body{i}", attempt, made)
        except ConstraintError as error:
            raise ConstraintError(f"structures[{i}]: {error}", error.refused) from None
        bodies.append(rules)
        spans.append(
            {"begin": structure.begin, "json": structure.kind == "schema", "checks": json.loads(checks or "null")}
        )
    if any(span["checks"] for span in spans):
        made.checks = json.dumps({"spans": spans}, separators=(",", ":"), ensure_ascii=False)
    made.enforced = sorted(set(made.enforced))
    made.grammar = lark_grammar("\n".join([*_frame(tag), *bodies]))
    return made


def _body(
    constraint: Constraint, structure: Structure, name: str, attempt: Callable[[str], str], made: TagGrammar
) -> tuple[str, str]:
    """The rules of what stands between begin and end, the first of them named `name`, and its checks."""
    if structure.kind == "regex":
        return f"{name}: {regex_terminal(structure.regex or '')}", ""
    if structure.kind == "ebnf":
        return ebnf_to_lark(structure.ebnf or "", name), ""
    inner = msgspec.structs.replace(
        constraint, kind="json_schema", body=json.dumps(structure.schema, ensure_ascii=False)
    )
    checked = check_schema(inner, lambda grammar: attempt(json_grammar(grammar, constraint)))
    made.enforced += checked.enforced
    made.relaxed += checked.relaxed
    return (
        f"{name}: %json {json.dumps(with_whitespace(checked.grammar, constraint), ensure_ascii=False)}",
        checked.checks,
    )


def _frame(tag: StructuralTag) -> list[str]:
    """The rules around the bodies.

    Free text up to a trigger is a lexeme that ends as early as it can, so nothing but a structure can come after one.
    """
    any_trigger = "|".join(literal(trigger) for trigger in tag.triggers)
    rules = [f"TEXT: /(?s:.*)/ & ~/(?s:.*)(?:{any_trigger})(?s:.*)/"]
    opened, at_once = [], []
    for i, trigger in enumerate(tag.triggers):
        mine = [n for n, structure in enumerate(tag.structures) if trigger_of(structure, tag) == i]
        for n in mine:
            rest, end = tag.structures[n].begin[len(trigger) :], tag.structures[n].end
            parts = [*([text_terminal(rest)] if rest else []), f"body{n}", *([text_terminal(end)] if end else [])]
            rules.append(f"rest{n}: {' '.join(parts)}")
            at_once.append(f"{text_terminal(trigger)} rest{n}")
        if mine:
            rules.append(f"open{i}[lazy]: /(?s:.*){literal(trigger)}/")
            opened.append(f"open{i} ({' | '.join(f'rest{n}' for n in mine)})")
    first, later = f"({' | '.join(at_once)})", f"({' | '.join(opened)})"
    if tag.stop_after_first:
        return [f"start: {first}" if tag.at_least_one else f"start: {later} | TEXT", *rules]
    return [f"start: {first} {later}* TEXT" if tag.at_least_one else f"start: {later}* TEXT", *rules]
