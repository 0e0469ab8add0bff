"""Grammars in GBNF style: read strictly, and written as a Lark grammar for llguidance that means the same, character by
character.

llguidance cuts text into lexemes before it parses. A grammar without recursion becomes one lexeme; in one with
recursion every character is a lexeme of its own, so that no cut can be in a wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from ..spec import ConstraintError

MAX_RULES = 2000
MAX_PARTS = 50_000
MAX_REPEAT = 10_000
MAX_DEPTH = 60
MAX_TEXT = 1 << 18

_TOKEN = re.compile(
    r"""[ \t\r\n]+|\#[^\n]*                                          # nothing
    |(?P<define>(?P<defined>[A-Za-z][A-Za-z0-9_-]*)[ \t]*::=)
    |(?P<name>[A-Za-z][A-Za-z0-9_-]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[\^?(?:[^\]\\\n]|\\.)*\])
    |(?P<repeat>[*+?]|\{[ ]*\d*[ ]*(?:,[ ]*\d*[ ]*)?\})
    |(?P<mark>[|().])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    '"': '"',
    "\\": "\\",
    "[": "[",
    "]": "]",
    "-": "-",
    "^": "^",
    "/": "/",
    "'": "'",
}


@dataclass
class RulePart:
    """One piece of a rule. kind: "text" (value), "set" (value: a class in regex), "rule" (value: its name), "sequence",
    "choice" or "repeat" (the one in `parts`, low to high times; no high: any number of times).
    """

    kind: str
    value: str = ""
    parts: list[RulePart] = field(default_factory=list)
    low: int = 0
    high: int | None = None


def ebnf_to_lark(text: str, start: str = "start") -> str:
    """The rules of a Lark grammar whose rule `start` is the grammar's `root`. Raises ConstraintError.

    All its other names begin with `start`, too, in small letters or capitals.
    """
    return "\n".join(_Writer(check_ebnf(text), start).lines())


def check_ebnf(text: str) -> dict[str, RulePart]:
    """The rules of a grammar. Raises ConstraintError for one that is malformed or can never end."""
    rules = _Parser(text).parse()
    _check_rules(rules)
    return rules


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise ConstraintError(f"the grammar has {len(text)} characters; at most {MAX_TEXT} are allowed")
        self._text = text
        self._tokens = list(self._lex(text))
        self._at = 0
        self._count = 0

    def _lex(self, text: str) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                self._fail(at, f"{text[at : at + 20]!r} is not part of a grammar")
            if found.lastgroup:
                kind = "define" if found["define"] else found.lastgroup
                yield kind, found["defined"] or found[0], at
            at = found.end()
        yield "end", "", at

    def _fail(self, at: int, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        raise ConstraintError(f"the grammar is wrong at line {line}: {reason}")

    def parse(self) -> dict[str, RulePart]:
        rules: dict[str, RulePart] = {}
        while self._tokens[self._at][0] != "end":
            kind, name, at = self._tokens[self._at]
            if kind != "define":
                self._fail(at, "a rule begins with its name and ::=")
            if name in rules:
                self._fail(at, f"the rule {name} is defined a second time")
            if len(rules) == MAX_RULES:
                self._fail(at, f"there are more than {MAX_RULES} rules")
            self._at += 1
            rules[name] = self._choice(0)
            kind, value, at = self._tokens[self._at]
            if kind not in ("define", "end"):
                self._fail(at, f"{value!r} closes nothing")
        return rules

    def _choice(self, depth: int) -> RulePart:
        if depth > MAX_DEPTH:
            self._fail(self._tokens[self._at][2], f"groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._tokens[self._at][:2] == ("mark", "|"):
            self._at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else RulePart("choice", parts=options)

    def _sequence(self, depth: int) -> RulePart:
        parts: list[RulePart] = []
        while True:
            kind, value, at = self._tokens[self._at]
            if kind in ("end", "define") or (kind == "mark" and value in "|)"):
                return parts[0] if len(parts) == 1 else RulePart("sequence", parts=parts)
            self._count += 1
            if self._count > MAX_PARTS:
                self._fail(at, f"there are more than {MAX_PARTS} parts")
            self._at += 1
            if kind == "repeat":
                if not parts:
                    self._fail(at, f"there is nothing for {value} to repeat")
                parts.append(self._repeat(parts.pop(), value, at))
            else:
                parts.append(self._single(kind, value, at, depth))

    def _single(self, kind: str, value: str, at: int, depth: int) -> RulePart:
        match kind:
            case "text":
                return RulePart("text", "".join(char for char, _ in self._chars(value[1:-1], at)))
            case "set":
                return RulePart("set", self._set(value[1:-1], at))
            case "name":
                return RulePart("rule", value)
        if value == ".":
            return RulePart("set", r"[\x{0}-\x{10ffff}]")
        inner = self._choice(depth + 1)
        if self._tokens[self._at][:2] != ("mark", ")"):
            self._fail(at, "a ( is not closed")
        self._at += 1
        return inner

    def _repeat(self, part: RulePart, value: str, at: int) -> RulePart:
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(value, (0, None))
        if value[0] == "{":
            first, comma, last = (each.strip() for each in value[1:-1].partition(","))
            if not first and not last:
                self._fail(at, f"{value} has no number")
            low = int(first or 0)
            high = (int(last) if last else None) if comma else low
        if max(low, high or 0) > MAX_REPEAT:
            self._fail(at, f"{value} repeats more than {MAX_REPEAT} times")
        if high is not None and low > high:
            self._fail(at, f"{value} counts backwards")
        return RulePart("repeat", parts=[part], low=low, high=high)

    def _chars(self, text: str, at: int) -> Iterator[tuple[str, bool]]:
        """The characters that a text stands for, and whether each was written as an escape."""
        i = 0
        while i < len(text):
            found = _ESCAPE.match(text, i)
            if not found:
                yield text[i], False
                i += 1
                continue
            i = found.end()
            code = found[1] or found[2] or found[3]
            if not code and found[4] not in _NAMED:
                self._fail(at, f"\\{found[4]} is not an escape that is known")
            number = int(code, 16) if code else 0
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                self._fail(at, f"\\{found[0][1:]} is not a character")
            yield (chr(number) if code else _NAMED[found[4]]), True

    def _set(self, text: str, at: int) -> str:
        negated = text.startswith("^")
        chars = list(self._chars(text[negated:], at))
        items = []
        i = 0
        while i < len(chars):
            first = chars[i][0]
            if i + 2 < len(chars) and chars[i + 1] == ("-", False):
                last = chars[i + 2][0]
                if first > last:
                    self._fail(at, f"the range {first}-{last} runs backwards")
                items.append(f"{_hex(first)}-{_hex(last)}")
                i += 3
            else:
                items.append(_hex(first))
                i += 1
        if not items:
            self._fail(at, "a [] allows nothing")
        return f"[{'^' if negated else ''}{''.join(items)}]"


def _hex(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _check_rules(rules: dict[str, RulePart]) -> None:
    """Refuse grammars of which a rule is missing, or `root` can never be finished."""
    if not rules:
        raise ConstraintError("the grammar is empty; it needs a rule named root")
    if "root" not in rules:
        raise ConstraintError("the grammar has no rule named root, with which a completion starts")
    for name, part in rules.items():
        for used in _used(part):
            if used not in rules:
                raise ConstraintError(f"the grammar's rule {name} uses {used}, which is not defined")
    finite: set[str] = set()
    grown = True
    while grown:
        new = {name for name, part in rules.items() if name not in finite and _can_end(part, finite)}
        finite |= new
        grown = bool(new)
    if "root" not in finite:
        raise ConstraintError("the grammar's rule root leads back to itself in all its choices and can never end")


def _used(part: RulePart) -> Iterator[str]:
    if part.kind == "rule":
        yield part.value
    for each in part.parts:
        yield from _used(each)


def _can_end(part: RulePart, finite: set[str]) -> bool:
    match part.kind:
        case "rule":
            return part.value in finite
        case "sequence":
            return all(_can_end(each, finite) for each in part.parts)
        case "choice":
            return any(_can_end(each, finite) for each in part.parts)
        case "repeat":
            return part.low == 0 or _can_end(part.parts[0], finite)
    return True


class _Writer:
    """Writes rules without recursion as terminals, if all of them are that, else everything as rules."""

    def __init__(self, rules: dict[str, RulePart], start: str) -> None:
        self._order = self._below(rules)
        self._rules = rules
        self._start = start
        self._recursive = any(self._reaches(name, name) for name in self._order)
        self._numbers = {name: i for i, name in enumerate(self._order)}

    def lines(self) -> Iterator[str]:
        yield f"{self._start}: {self._name('root')}"
        for name in self._order:
            yield f"{self._name(name)}: {self._write(self._rules[name])}"

    def _below(self, rules: dict[str, RulePart]) -> list[str]:
        """The rules that `root` reaches."""
        found: dict[str, None] = {}
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = None
                todo += _used(rules[name])
        return list(found)

    def _reaches(self, name: str, goal: str) -> bool:
        seen: set[str] = set()
        todo = list(_used(self._rules[name]))
        while todo:
            each = todo.pop()
            if each == goal:
                return True
            if each not in seen:
                seen.add(each)
                todo += _used(self._rules[each])
        return False

    def _name(self, rule: str) -> str:
        name = f"{self._start}_{self._numbers[rule]}"
        return name if self._recursive else name.upper()

    def _write(self, part: RulePart) -> str:
        match part.kind:
            case "text" if not part.value:
                return '""'
            case "text" if self._recursive:
                return " ".join(f"/{_hex(char)}/" for char in part.value)
            case "text":
                return f"/{''.join(_hex(char) for char in part.value)}/"
            case "set":
                return f"/{part.value}/"
            case "rule":
                return self._name(part.value)
            case "sequence":
                return " ".join(self._grouped(each) for each in part.parts) or '""'
            case "choice":
                return " | ".join(self._write(each) for each in part.parts)
        inner = self._write(part.parts[0])
        ends = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        count = f"{{{part.low},{'' if part.high is None else part.high}}}"
        return f"({inner}){ends.get((part.low, part.high), count)}" if (part.low, part.high) != (0, 0) else '""'

    def _grouped(self, part: RulePart) -> str:
        return f"({self._write(part)})" if part.kind == "choice" else self._write(part)
