"""Keeps a pattern's classes away from a fault of llguidance: it must never be given a class that it widens.

The engine rewrites a pattern for the inside of a JSON string, where some characters are escaped. To a class that holds
all control characters (or all but the line feed) it gives all escapes of one letter, those of quote and backslash with
them, although the class may not hold these. So such a class is written without one control character, the spare one,
that nobody misses. Alternatives count as one class, since the engine joins them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

Watched = frozenset[str]

CONTROLS: Watched = frozenset(map(chr, range(32)))
SPECIAL: Watched = frozenset('"\\')
WATCHED = CONTROLS | SPECIAL
SPACES: Watched = frozenset("\t\n\v\f\r")  # those of \s
_MORE_SPACES: Watched = frozenset(map(chr, range(0x1C, 0x20)))  # of \s, as Python has it
_NEEDED = frozenset("\b\t\n\f\r\0\x1b")  # never the spare one


def held_by_set(kind: str, *, negated: bool) -> Watched:
    """What of the watched characters \\d, \\D, \\w, \\W, \\s or \\S holds, as it is written in a (negated) class."""
    if kind in "sS":
        wide = negated == (kind == "s")
        spaces = SPACES | _MORE_SPACES if wide else SPACES
        return spaces if kind == "s" else WATCHED - spaces
    return WATCHED if kind in "DW" else frozenset()


def held_by_category(name: str) -> Watched | None:
    """The same for the Unicode property of a name; None where that is none of the general categories' short names."""
    if len(name) > 2:
        return None
    return frozenset(char for char in WATCHED if unicodedata.category(char).startswith(name))


def spare_character(classes: Iterable[Watched], *, joined: bool) -> str:
    """The control character that classes (and single characters) are to be without; "" where there is no need.

    joined: whether some of them may be alternatives of each other. The character is none that stands there by itself.
    """
    risky = [held for held in classes if not held >= SPECIAL]
    together = [frozenset().union(*risky)] if joined else risky
    if not any(CONTROLS - {"\n"} <= held for held in together):
        return ""
    single = frozenset().union(*(held for held in risky if len(held) == 1))
    return max(CONTROLS - _NEEDED - single, key=lambda char: (-abs(ord(char) - 0x10), char), default="")
