"""Compiles what may be written where tools can be called to one Lark grammar for llguidance, and the checks of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..schema.check import check_schema
from ..spec import Constraint, ConstraintError, Unenforced
from .ebnf import ebnf_to_lark
from .lark import json_grammar, lark_grammar, literal, regex_terminal, text_terminal, with_whitespace
from .raw_text import LOOKS, SCALARS, raw_text
from .tool_calls import (
    LARK,
    AnswerConstraint,
    CallForm,
    FieldForm,
    Parameter,
    Part,
    Parts,
    Pattern,
    ToolCalls,
    after,
    joined,
    read_tool_calls,
)
from .user_lark import user_lark

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}:,] ?|[^"{}:,]+|"')

CheckedSpan = dict[str, Any]
"""A span of a completion for `matching.checks`: what it begins after; whether it is JSON, with which checks; else the
spans inside it and what it ends with (None: with the first of them)."""


@dataclass
class CallsGrammar:
    """grammar: for llguidance. The rest is as in `Compiled`."""

    grammar: str
    checks: str = ""
    enforced: list[str] = field(default_factory=list)
    relaxed: list[Unenforced] = field(default_factory=list)


def compile_tool_calls(constraint: Constraint, attempt: Callable[[str], str]) -> CallsGrammar:
    """attempt: tries to compile a grammar; the engine's complaint, or "". Raises ConstraintError."""
    return _CallsCompiler(constraint, read_tool_calls(constraint.body), attempt).compiled()


class _CallsCompiler:
    def __init__(self, constraint: Constraint, wanted: ToolCalls, attempt: Callable[[str], str]) -> None:
        self._wanted = wanted
        self._constraint = constraint
        self._arguments = msgspec.structs.replace(constraint, kind="json_schema", max_string=wanted.max_string)
        self._attempt = attempt
        self._made = CallsGrammar("")
        self._rules: list[str] = []
        self._is_checked = False

    def compiled(self) -> CallsGrammar:
        spans = []
        for i, call in enumerate(self._wanted.calls):
            try:
                spans.append(self._call(i, call))
            except ConstraintError as error:
                raise ConstraintError(f"calls[{i}]: {error}", error.refused) from None
        answer = None
        if self._wanted.answer is not None:
            try:
                answer = self._answer(self._wanted.answer)
            except ConstraintError as error:
                raise ConstraintError(f"answer: {error}", error.refused) from None
        self._rules.insert(0, f"start: {self._start()}")
        made = self._made
        made.relaxed = [*self._wanted.notes, *made.relaxed]
        if self._is_checked:
            said = {"spans": spans, "answer": answer, "starts": self._starts()}
            made.checks = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        made.enforced = sorted(set(made.enforced))
        made.grammar = lark_grammar("\n".join(self._rules))
        return made

    # --- the frame --------------------------------------------------------------------------------------------------

    def _start(self) -> str:
        """Text, or calls. After calls text is free again: whoever reads them ends the turn there, and a model that is
        held to nothing but another call makes one."""
        wanted = self._wanted
        marked = bool(wanted.text.begin or wanted.text.end)
        later = ""
        if not marked:
            self._rules.append(self._free_text())
            later = " | ".join(form for i, each in enumerate(wanted.triggers) for form in self._after_text(i, each))
        if wanted.required or marked or wanted.answer is not None:
            calls = f"({' | '.join(self._group(joined(each)) for each in wanted.opens)})"
            forms = [calls if wanted.once else f"{calls} ({later})* TEXT"]
            if not wanted.required:
                forms.append(self._in_place_of_calls(marked=marked))
        else:
            forms = [later, "TEXT"] if wanted.once else [f"({later})* TEXT"]
        lead = []
        for i, each in enumerate(wanted.lead):
            end = joined(each.end)
            if end and isinstance(end[0], str):
                self._rules.append(f"leadtext{i}[lazy]: /(?s:.*){literal(end[0])}/")
                end = end[1:]
            else:
                self._rules.append(f"leadtext{i}: /(?s:.*)/")
            self._rules.append(f"lead{i}: {_sequence([*_terms(each.begin), f'leadtext{i}', *_terms(end)])}")
            lead.append(f"lead{i}")
        before = f"({' | '.join(lead)})* " if lead else ""
        return f"{before}({' | '.join(forms)})"

    def _in_place_of_calls(self, *, marked: bool) -> str:
        text = "answer" if self._wanted.answer is not None else "ANYTHING" if marked else "TEXT"
        self._rules += ["ANYTHING: /(?s:.*)/"] if text == "ANYTHING" else []
        return _sequence([*_terms(self._wanted.text.begin), text, *_terms(self._wanted.text.end)])

    def _starts(self) -> list[Parts]:
        """What a completion begins with that begins with calls, up to the first pattern in it."""
        starts = [each for each in map(joined, self._wanted.opens) if each]
        if [] in self._wanted.opens:
            starts += [joined(call.begin) for call in self._wanted.calls]
        cuts = [next((i for i, part in enumerate(each) if isinstance(part, Pattern)), None) for each in starts]
        return [each[:cut] for each, cut in zip(starts, cuts)]

    def _free_text(self) -> str:
        """Text that no call begins in. A lexeme that ends as early as it can, so nothing but a call comes after one."""
        texts = [literal(trigger) for trigger in self._wanted.triggers if isinstance(trigger, str)]
        if not texts:
            return "TEXT: /(?s:.*)/"
        return f"TEXT: /(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(texts)})(?s:.*)/"

    def _after_text(self, index: int, trigger: str | int) -> list[str]:
        """The forms of free text and then calls that begin with this trigger."""
        forms = []
        for opening in self._wanted.opens:
            rest = after(trigger, joined(opening)) if opening else None
            if rest is not None:
                forms.append(self._group(rest))
        if [] in self._wanted.opens:
            forms += [self._group([], index)] if self._first(index, trigger) else []
        if not forms:
            return []
        if isinstance(trigger, int):
            return [f"TEXT {_special(trigger)} {form}" for form in forms]
        self._rules.append(f"open{index}[lazy]: /(?s:.*){literal(trigger)}/")
        return [f"open{index} ({' | '.join(forms)})"]

    def _first(self, index: int, trigger: str | int) -> list[str]:
        """Rules for the first call, after its trigger."""
        names = []
        for i, call in enumerate(self._wanted.calls):
            rest = after(trigger, joined(call.begin))
            if rest is not None:
                self._rules.append(f"rest{index}x{i}: {_sequence([*_terms(rest), f'body{i}', *_terms(call.end)])}")
                names.append(f"rest{index}x{i}")
        if names:
            self._rules.append(f"first{index}: {' | '.join(names)}")
        return names

    def _group(self, opening: Parts, first: int | None = None) -> str:
        """Calls from the opening to the close; the first one lacks the trigger of this index."""
        wanted, begin = self._wanted, "call" if first is None else f"first{first}"
        separator, close = joined(wanted.separator), _terms(joined(wanted.close))
        more = [] if wanted.once or not close else [f"({_sequence([*_terms(separator), 'call'])})*"]
        return _sequence([*_terms(opening), begin, *more, *close])

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, index: int, call: CallForm) -> CheckedSpan:
        """Adds the rules of a call, `call` being any of them; returns its span."""
        name = f"body{index}"
        spans: list[CheckedSpan]
        if call.fields is None:
            rule, checks = self._json(call.schema if call.schema is not None else True)
            self._rules.append(f"{name}: {rule}")
            spans = [{"begin": [], "json": True, "checks": checks}]
            end: Parts | None = None
        else:
            spans = self._fields(name, call.fields, self._wanted.form or FieldForm([], [], [], [], []))
            end = call.end
        if index == 0:
            self._rules.append(f"call: {' | '.join(f'call{i}' for i in range(len(self._wanted.calls)))}")
        self._rules.append(f"call{index}: {_sequence([*_terms(joined(call.begin)), name, *_terms(joined(call.end))])}")
        return _nested(joined(call.begin), spans, end)

    def _json(self, schema: dict[str, Any] | bool) -> tuple[str, Any]:
        """The right side of a rule for the JSON of a schema, and its checks."""
        lark = _string_grammar(schema)
        if lark is not None:
            key, definition = lark
            head, tail = (f'{{{json.dumps(key)}: "', '"}') if key else ('"', '"')
            inner = f"%lark {{\n{user_lark(definition, quoted=True)}\n}}"
            self._rules.append(f"input{len(self._rules)}: {inner}")
            return f"{text_terminal(head)} input{len(self._rules) - 1} {text_terminal(tail)}", None
        inner = msgspec.structs.replace(self._arguments, body=json.dumps(schema, ensure_ascii=False))
        checked = check_schema(inner, lambda grammar: self._attempt(json_grammar(grammar, inner)))
        self._made.enforced += checked.enforced
        self._made.relaxed += checked.relaxed
        self._is_checked = self._is_checked or bool(checked.checks)
        rule = f"%json {json.dumps(with_whitespace(checked.grammar, inner, spaced=True), ensure_ascii=False)}"
        return rule, json.loads(checked.checks or "null")

    def _fields(self, name: str, parameters: list[Parameter], form: FieldForm) -> list[CheckedSpan]:
        """Rules for arguments that are written one by one, in their order; returns the spans of their values.

        `name`x: at the start of argument number x; `name`x_: the same, after another one.
        """
        spans = []
        separator = _terms(joined(form.separator))
        for i, parameter in enumerate(parameters):
            spans += self._field(f"{name}p{i}", parameter, form)
            for mark, between in (("", []), ("_", separator)):
                written = _sequence([*between, f"{name}p{i}", f"{name}x{i + 1}_"])
                skipped = "" if parameter.required else f" | {name}x{i + 1}{mark}"
                self._rules.append(f"{name}x{i}{mark}: {written}{skipped}")
        self._rules += [f'{name}x{len(parameters)}: ""', f'{name}x{len(parameters)}_: ""']
        self._rules.append(f"{name}: {name}x0")
        return spans

    def _field(self, name: str, parameter: Parameter, form: FieldForm) -> list[CheckedSpan]:
        """The rule of one argument."""
        head = joined(form.open, [parameter.key])
        forms, spans = [], []
        lark = _string_grammar(parameter.text[0]) if len(parameter.text) == 1 else None
        if lark is not None:
            begin, end = joined(head, form.text_open), joined(form.text_close)
            self._rules.append(f"{name}l: %lark {{\n{user_lark(lark[1], quoted=False)}\n}}")
            forms.append(_sequence([*_terms(begin), f"{name}l", *_terms(end)]))
            spans.append(_nested(begin, [], end))
        elif parameter.text:
            begin, end = joined(head, form.text_open), joined(form.text_close)
            forms.append(_sequence([*_terms(begin), *self._text(f"{name.upper()}T", parameter, form, end)]))
            spans.append(_nested(begin, [], end))
        for i, schema in enumerate(parameter.json):
            begin, end = joined(head, form.json_open), joined(form.json_close)
            rule, checks = self._json(schema)
            self._rules.append(f"{name}j{i}: {rule}")
            forms.append(_sequence([*_terms(begin), f"{name}j{i}", *_terms(end)]))
            if not parameter.text or form.json_open != form.text_open:
                spans.append(_nested(begin, [{"begin": [], "json": True, "checks": checks}], None))
            elif checks:
                raise ConstraintError(
                    f"{parameter.key} may be a text or something else whose schema needs checks, which this model's "
                    "way of writing calls does not tell apart"
                )
        if parameter.words and not parameter.scalars:
            words = "|".join(map(literal, parameter.words))
            forms.append(_sequence([*_terms(joined(head, form.json_open)), f"/{words}/", *_terms(form.json_close)]))
        self._rules.append(f"{name}: {' | '.join(forms)}")
        return spans

    def _text(self, name: str, parameter: Parameter, form: FieldForm, end: Parts) -> list[str]:
        """Text as it is, and the mark that ends it: as one terminal where that is text, since both look alike."""
        bound, strict, relaxed = self._arguments.max_string, self._arguments.strict, self._made.relaxed
        texts = [f"({raw_text(each, form.text_end, bound, strict, relaxed)})" for each in parameter.text]
        unlike = [f"~/(?:{LOOKS[each]})/" for each in parameter.not_text]
        without = [f"~/(?s:.*){literal(form.text_end)}(?s:.*)/"] if form.text_end else []
        text = " & ".join([f"({' | '.join(texts)})", *unlike, *without])
        others = [SCALARS[each] for each in parameter.scalars]
        others += map(literal, parameter.words if parameter.scalars else [])
        text = f"({text})" + (f" | /{'|'.join(others)}/" if others else "")
        if not end or not isinstance(end[0], str):
            self._rules.append(f"{name}: {text}")
            return [name, *_terms(end)]
        self._rules.append(f"{name}: ({text}) {text_terminal(end[0])}")
        return [name, *_terms(end[1:])]

    # --- the answer in place of text --------------------------------------------------------------------------------

    def _answer(self, answer: AnswerConstraint) -> CheckedSpan:
        checks: Any = None
        match answer.kind:
            case "json_schema" | "json_object":
                inner = msgspec.structs.replace(self._constraint, kind=answer.kind, body=answer.body)
                checked = check_schema(inner, lambda grammar: self._attempt(json_grammar(grammar, inner)))
                self._made.enforced += checked.enforced
                self._made.relaxed += checked.relaxed
                self._is_checked = self._is_checked or bool(checked.checks)
                checks = json.loads(checked.checks or "null")
                rule = f"answer: %json {json.dumps(with_whitespace(checked.grammar, inner), ensure_ascii=False)}"
            case "regex":
                rule = f"answer: {regex_terminal(answer.body)}"
            case "choice":
                rule = f"answer: /{'|'.join(map(literal, json.loads(answer.body)))}/"
            case "ebnf":
                rule = ebnf_to_lark(answer.body, "answer")
        self._rules.append(rule)
        is_json = answer.kind.startswith("json")
        return {"begin": joined(self._wanted.text.begin), "json": is_json, "checks": checks}


def _string_grammar(schema: dict[str, Any] | bool) -> tuple[str, str] | None:
    """(property, Lark grammar) of a schema that is of a string with a grammar, or of an object with just that string;
    the property is "" for a string."""
    if not isinstance(schema, dict):
        return None
    if LARK in schema:
        return "", str(schema[LARK])
    properties = schema.get("properties")
    if isinstance(properties, dict) and len(properties) == 1:
        [(key, only)] = properties.items()
        return (key, str(only[LARK])) if isinstance(only, dict) and LARK in only else None
    return None


def _nested(begin: Parts, inside: list[CheckedSpan], end: Parts | None) -> CheckedSpan:
    """The span of a call or of a value; a pattern in its beginning cuts that in two, one span within the other."""
    at = next((i for i, part in enumerate(begin) if isinstance(part, Pattern)), None)
    if at is not None:
        return _nested(begin[:at], [_nested(begin[at + 1 :], inside, end)], None)
    only = inside[0] if len(inside) == 1 else None
    if only is not None and end is None and not only["begin"] and only["json"]:
        return {**only, "begin": begin}
    fixed = None if end is None else [part for part in end if not isinstance(part, Pattern)]
    return {"begin": begin, "json": False, "inside": inside, "end": fixed}


def _terms(parts: Parts) -> list[str]:
    """The symbols of a rule for these marks.

    What looks like JSON is cut into JSON's tokens: where an answer may be JSON as well, the lexer has to take both for
    the same as long as they are.
    """
    return [term for part in joined(parts) for term in _of_part(part)]


def _of_part(part: Part) -> list[str]:
    if isinstance(part, int):
        return [_special(part)]
    if isinstance(part, Pattern):
        return [f"/{part.regex}/"]
    pieces = _JSON_TOKEN.findall(part) if part.startswith("{") else [part]
    return [text_terminal(piece) for piece in pieces]


def _special(token_id: int) -> str:
    return f"<[{token_id}]>"


def _sequence(symbols: list[str]) -> str:
    return " ".join(symbols) or '""'
