"""Lines of a system prompt that change while the rest of it stays: how they are recognized, and where they may go.

A pattern sees one line of bounded length and is matched at its start. What takes more than some microseconds for it is
refused: an operator's pattern meets lines that strangers write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 256  # characters; a longer line is nobody's date
MAX_PATTERN = 256
MAX_PATTERNS = 16
_MAX_REPEATS, _MAX_OPTIONS = 2, 8


@dataclass(frozen=True)
class LineRule:
    """pattern: of the line's start, whatever its case and behind a list's dash. each_request: it changes from one
    request to the next, not from one conversation (or day) to the next."""

    name: str
    pattern: str
    each_request: bool


_IS = r"(?: is\b|[ \t]?[:=])[ \t]*"

RULES = (
    LineRule("attribution", r"x-anthropic-[a-z-]{1,40}:", each_request=True),
    LineRule(
        "time",
        r"(?:the )?(?:current |local |now )?(?:date ?(?:/|and|&|-)? ?time|datetime|timestamp|local time|current time)"
        rf"(?: \([^)]{{1,40}}\))?{_IS}[^\d]{{0,40}}\d",
        each_request=True,
    ),
    LineRule("request id", rf"(?:request|message|trace)[ _-]?id{_IS}\S", each_request=True),
    LineRule(
        "date",
        rf"(?:(?:the )?(?:today'?s|current) date(?: \([^)]{{1,40}}\))?{_IS}|today(?: is|:)|date:)[^\d]{{0,40}}\d",
        each_request=False,
    ),
    LineRule("session id", rf"(?:session|conversation|thread|chat)[ _-]?id{_IS}\S", each_request=False),
    LineRule(
        "working directory",
        rf"(?:the |your )?(?:current |primary )?(?:working directory|cwd|workdir){_IS}[^/\\~]{{0,8}}[/\\~]",
        each_request=False,
    ),
)
"""In this order. A date with a clock time in it counts as a time."""

_LEAD = r"[ \t]{0,16}(?:[-*•][ \t]{1,4})?(?:\*\*)?"
_RULES = re.compile(_LEAD + "(?:" + "|".join(f"({rule.pattern})" for rule in RULES) + ")", re.IGNORECASE)
_CLOCK = re.compile(r"\b\d{1,2}:\d\d")
_TIME = next(rule for rule in RULES if rule.name == "time")


def rule_for(line: str, patterns: tuple[re.Pattern[str], ...] = ()) -> LineRule | None:
    """The rule that a line falls under; None for one that stays. patterns: further ones, of the operator."""
    if len(line) > MAX_LINE:
        return None
    found = _RULES.match(line)
    if found is not None and found.lastindex is not None:
        rule = RULES[found.lastindex - 1]
        return _TIME if rule.name == "date" and _CLOCK.search(line) else rule
    for each in patterns:
        if each.match(line):
            return LineRule("pattern", each.pattern, each_request=True)
    return None


_TOKEN = re.compile(
    r"\\(?P<escape>.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|(?P<group>\(\?)|(?P<repeat>\)?[*+{])|(?P<option>\?)", re.DOTALL
)


def complaint_about_pattern(pattern: str) -> str:
    """What is wrong with an operator's pattern, after its name; "" for nothing."""
    if not 0 < len(pattern) <= MAX_PATTERN:
        return f"must have 1 to {MAX_PATTERN} characters, not {len(pattern)}."
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}."
    repeats = options = 0
    for found in _TOKEN.finditer(pattern.removeprefix("(?i)")):
        if (found["escape"] or "").isdigit() or found["group"]:
            return f"has {found[0]!r} in it; only plain groups, (?:…) and (?i) at its start are allowed."
        if (found["repeat"] or "").startswith(")"):
            return "repeats a group; only single characters and classes may be repeated."
        repeats, options = repeats + bool(found["repeat"]), options + bool(found["option"])
    if repeats > _MAX_REPEATS or options > _MAX_OPTIONS:
        return f"may have {_MAX_REPEATS} repeats (*, +, {{}}) and {_MAX_OPTIONS} question marks at most."
    return "matches an empty line." if compiled.match("") else ""
