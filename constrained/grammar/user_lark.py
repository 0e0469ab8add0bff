"""A caller's own Lark grammar as part of a larger one: it can name no control token, and nothing outside of itself.

quoted: for the inside of a JSON string, so that what it matches is the string's value, not its spelling.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

from ..spec import ConstraintError
from .lark import literal

sre: Any = import_module("re._constants")
sre_parser: Any = import_module("re._parser")

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"i?)|(?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)"""
    r"""|(?P<directive>%\w+[^\n]*)|(?P<name>!?[?_]*[A-Za-z_][A-Za-z0-9_.]*)|(?P<space>\s+)"""
    r"""|(?P<sign>->|[:|()\[\]?*+~{},]|\.\.|\d+|[&])""",
    re.DOTALL,
)
_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "\\": "\\"}
_CATEGORIES = {
    sre.CATEGORY_DIGIT: "0-9",
    sre.CATEGORY_WORD: "0-9A-Za-z_",
    sre.CATEGORY_SPACE: "\x20",
}
_MAX = 100_000


def user_lark(definition: str, *, quoted: bool) -> str:
    """The rules, as they can stand in `%lark { … }`. Raises ConstraintError."""
    if len(definition) > _MAX:
        raise ConstraintError(f"the lark grammar has {len(definition)} characters; at most {_MAX} are allowed")
    made, at = [], 0
    while at < len(definition):
        found = _TOKEN.match(definition, at)
        if found is None:
            line, rest = definition.count("\n", 0, at) + 1, definition[at : at + 20]
            raise ConstraintError(f"the lark grammar is wrong, or not supported, at line {line}: {rest!r}")
        at = found.end()
        kind, text = found.lastgroup, found[0]
        if kind == "directive":
            if quoted or text.split()[0] != "%ignore":
                allowed = "no directive is" if quoted else "only %ignore is"
                raise ConstraintError(f"the lark grammar has {text.split()[0]}; {allowed} supported here")
            made.append("%ignore " + user_lark(text.partition("%ignore")[2].strip(), quoted=False))
        elif kind == "string":
            made.append(_string(text, quoted))
        elif kind == "regex":
            made.append(_regex(text, quoted))
        elif kind == "name":
            made.append(_rule(text) if quoted else text)
        elif kind != "comment":
            made.append(text)
    return "".join(made)


def _rule(name: str) -> str:
    """A name for a rule: within quotes a terminal is one, too, since its characters are terminals of their own."""
    bare = re.sub(r"\.-?\d+$", "", name.lstrip("?!"))
    return f"tt{bare.lower()}" if bare.lstrip("_").isupper() else bare


def _string(text: str, quoted: bool) -> str:
    is_loose = text.endswith("i")
    try:
        said = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text.removesuffix("i")))
    except ValueError:
        raise ConstraintError(f"the lark grammar has a text that cannot be read: {text[:50]}") from None
    if not said:
        return '""'
    pieces = map(_char, said) if quoted else [literal(said)]
    return f"({' '.join(f'/(?i:{each})/' if is_loose else f'/{each}/' for each in pieces)})"


def _regex(text: str, quoted: bool) -> str:
    pattern, _, flags = text[1:].rpartition("/")
    if not quoted:
        return f"/(?{flags.replace('l', '')}:{pattern})/" if flags else f"/{pattern}/"
    try:
        tree = sre_parser.parse(pattern.replace("\\/", "/"), re.IGNORECASE if "i" in flags else 0)
    except re.error as error:
        raise ConstraintError(f"the lark grammar's pattern {pattern[:100]!r} cannot be read: {error}") from None
    return _written(list(tree), dot_all="s" in flags, loose="i" in flags)


def _char(char: str) -> str:
    """A character, as a JSON string writes it."""
    if char in _SHORT:
        return literal("\\" + _SHORT[char])
    return rf"\\u{ord(char):04x}" if ord(char) < 32 else literal(char)


def _written(nodes: list[Any], *, dot_all: bool, loose: bool) -> str:
    """A parsed pattern as a part of a rule, in which every character is a terminal.

    Longer terminals do not do: after one that may hold escapes, the lexer would take the first half of an escape for
    more of it.
    """

    def inner(part: Any) -> str:
        return _written(list(part), dot_all=dot_all, loose=loose)

    made = []
    for kind, value in nodes:
        if kind is sre.LITERAL:
            made.append(_terminal(_char(chr(value)), loose))
        elif kind is sre.ANY:
            made.append(_set([] if dot_all else [(sre.LITERAL, 10)], negated=True, loose=loose))
        elif kind is sre.NOT_LITERAL:
            made.append(_set([(sre.LITERAL, value)], negated=True, loose=loose))
        elif kind is sre.IN:
            negated = value[0][0] is sre.NEGATE
            made.append(_set(value[1:] if negated else value, negated=negated, loose=loose))
        elif kind is sre.BRANCH:
            made.append(f"({' | '.join(inner(each) for each in value[1])})")
        elif kind is sre.SUBPATTERN:
            made.append(inner(value[3]))
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            made.append(_repeated(inner(value[2]), int(value[0]), value[1]))
        else:
            raise ConstraintError(f"the lark grammar's patterns may not have {str(kind).lower()}")
    return f"({' '.join(made)})" if made else '""'


def _repeated(part: str, low: int, high: Any) -> str:
    if high is not sre.MAXREPEAT:
        return f"{part}{{{low},{high}}}"
    return f"{part}*" if low == 0 else f"{part}+" if low == 1 else f"{part}{{{low},{low}}} {part}*"


def _terminal(regex: str, loose: bool) -> str:
    return f"/(?i:{regex})/" if loose else f"/{regex}/"


def _set(items: Any, *, negated: bool, loose: bool) -> str:
    """A class of characters: what JSON writes as it is, and the escapes of what it does not."""
    held = [_holds(item) for item in items]
    escaped = [c for c in map(chr, [*range(32), 34, 92]) if any(holds(c) for holds in held) != negated]
    plain = "".join(_range(item) for item in items)
    others = "\\x{0}-\\x{1f}\\x{22}\\x{5c}\\x{7f}"
    forms = [f"[^{plain}{others}]"] if negated else [f"[{plain}&&[^{others}]]"] if plain else []
    forms += [_char(each) for each in escaped]
    return f"({' | '.join(_terminal(each, loose) for each in forms)})"


def _holds(item: Any) -> Any:
    kind, value = item
    if kind is sre.LITERAL:
        return lambda char: ord(char) == value
    if kind is sre.RANGE:
        return lambda char: value[0] <= ord(char) <= value[1]
    if kind is sre.CATEGORY and value in _CATEGORIES:
        return lambda char: value is sre.CATEGORY_SPACE and char in "\t\n\v\f\r"
    raise ConstraintError(f"the lark grammar's classes may not have {str(value).lower()}")


def _range(item: Any) -> str:
    kind, value = item
    if kind is sre.LITERAL:
        return literal(chr(value))
    return f"{literal(chr(value[0]))}-{literal(chr(value[1]))}" if kind is sre.RANGE else _CATEGORIES[value]
