"""What of strings and numbers goes into a grammar, and what a check must see to."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ...grammar.formats import FORMAT_CHECKS, FORMAT_LENGTHS, FORMATS
from ...grammar.patterns import PatternError, to_engine, to_wide

Json = Any

FRACTION_DIGITS = 10  # the engine can bound them to this many
MAX_NUMBER = 10**15  # doubles below it are exact to a fraction of a unit
MAX_INTEGER = (1 << 63) - 1024  # the largest double that the engine's 64-bit integers hold
EXACT = 1 << 53  # beyond it the engine rounds bounds
MAX_COEFFICIENT = 10_000  # of a multipleOf that the engine counts with
LONG = 20_000  # a minLength above it is checked, not counted by the engine


@dataclass
class Scalars:
    """keywords: what goes into the grammar's schema. extra: schemas that apply beside it. left: what is to be
    checked.
    """

    keywords: dict[str, Json] = field(default_factory=dict)
    extra: list[Json] = field(default_factory=list)
    left: set[str] = field(default_factory=set)


def lower_string(node: dict[str, Json], only_type: bool, max_string: int, patterns: bool, several: bool) -> Scalars:
    """The string keywords of a schema.

    only_type: it allows strings only. max_string: bound where nothing else bounds, 0 for none.
    patterns, several: whether the grammar may hold patterns at all, and more than one restriction of a string.
    """
    found = Scalars()
    regexes = []
    if "pattern" in node:
        if patterns and pattern_fits(node["pattern"]):
            regexes.append(("pattern", to_engine(node["pattern"])))
        else:
            found.left.add("pattern")
            if patterns:
                regexes.append(("pattern", to_wide(node["pattern"])))
    lengths = {keyword: node[keyword] for keyword in ("minLength", "maxLength") if keyword in node}
    if "format" in node:
        name = node["format"]
        if name in FORMATS and patterns:
            regexes.append(("format", f"^(?:{FORMATS[name]})$"))
        if name in FORMAT_CHECKS or (name in FORMATS and not patterns):
            found.left.add("format")
        if name in FORMAT_LENGTHS:
            lengths["maxLength"] = min(FORMAT_LENGTHS[name], lengths.get("maxLength", FORMAT_LENGTHS[name]))
    if lengths.get("minLength", 0) > LONG:
        found.left.add("minLength")
        del lengths["minLength"]
    if not several and regexes:
        found.left |= {keyword for keyword, _ in regexes[1:]} | (set(lengths) & node.keys())
        if set(lengths) - node.keys():
            found.left.add("format")
        regexes, lengths = regexes[:1], {}
    found.keywords.update(lengths)
    for i, (_, regex) in enumerate(regexes):
        if i == 0:
            found.keywords["pattern"] = regex
        else:
            found.extra.append({"type": "string", "pattern": regex} if only_type else {"pattern": regex})
    if only_type and max_string and "maxLength" not in node and not node.keys() & {"pattern", "format"}:
        found.keywords["maxLength"] = max(max_string, node.get("minLength", 0))
    return found


def pattern_fits(pattern: str) -> bool:
    """Whether a pattern (a legal one) can be part of a grammar."""
    try:
        to_engine(pattern)
    except PatternError:
        return False
    return True


def lower_number(node: dict[str, Json], kinds: set[str], bound_fraction: bool) -> Scalars:
    """The number keywords of a schema that allows the types `kinds`, with bounds on how long a number gets."""
    found = Scalars()
    fraction_digits = FRACTION_DIGITS
    bounded = bool(kinds)
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if keyword not in node:
            continue
        value = node[keyword]
        if abs(value) > (EXACT if kinds == {"integer"} else MAX_NUMBER):
            if not _implied(keyword, value, kinds):
                found.left.add(keyword)
                bounded = False
            continue
        found.keywords[keyword] = value
        if keyword.startswith("exclusive") and "number" in kinds:
            fraction_digits = min(fraction_digits, 15 - len(str(int(abs(value)))))
            if not bound_fraction:
                found.left.add(keyword)  # digits beyond a double's could be rounded onto the bound
    if "multipleOf" in node:
        _multiple(node["multipleOf"], found)
    elif "number" in kinds and bound_fraction:
        found.keywords["multipleOf"] = float(Fraction(1, 10 ** max(0, fraction_digits)))
    if bounded:
        limit = MAX_NUMBER if "number" in kinds else MAX_INTEGER
        if not found.keywords.keys() & {"minimum", "exclusiveMinimum"}:
            found.keywords["minimum"] = -limit
        if not found.keywords.keys() & {"maximum", "exclusiveMaximum"}:
            found.keywords["maximum"] = limit
    return found


def _implied(keyword: str, value: float, kinds: set[str]) -> bool:
    """Whether the default bounds are narrower than this one."""
    limit = MAX_NUMBER if "number" in kinds else MAX_INTEGER
    return bool(kinds) and (value < -limit if "inimum" in keyword else value > limit)


def _multiple(value: float, found: Scalars) -> None:
    if isinstance(value, float) and value == int(value) and abs(value) < EXACT:
        value = int(value)
    if isinstance(value, float):
        found.left.add("multipleOf")  # readers divide doubles, and 0.3 / 0.1 is not whole to them
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    digits = 0
    while exact.denominator > 1 and digits <= FRACTION_DIGITS:
        exact, digits = exact * 10, digits + 1
    if exact.denominator == 1 and exact <= MAX_COEFFICIENT:
        found.keywords["multipleOf"] = value
    else:
        found.left.add("multipleOf")
