"""Regular expressions of JSON Schema (ECMA 262), rewritten for the grammar engine and for Python's `re`.

Where dialects disagree on what a class holds (is `\\w` Unicode?), the engine's form takes what all of them accept, so
that a completion is right for every reader; where they disagree on what a pattern means, the pattern is refused.
"""

from __future__ import annotations

import re

from .pattern_quoting import spare_character
from .pattern_translator import PatternError, Target, Translator

MAX_STEPS = 10**7  # of backtracking

__all__ = ["PatternError", "check_pattern", "to_engine", "to_python", "to_whole", "to_wide"]


def to_engine(pattern: str) -> str:
    """The pattern for an automaton, where it searches (only `^` and `$` anchor). Raises PatternError."""
    return _for_engine(pattern, "engine")


def to_wide(pattern: str) -> str:
    """The same, but finding more where need be: without look-around and word boundaries."""
    return _for_engine(pattern, "wide")


def to_whole(pattern: str) -> str:
    """The pattern for an automaton that matches whole texts; `^` and `$` may stand where those begin and end.

    Raises PatternError.
    """
    return _hex(Translator(pattern, "whole").translate())


def to_python(pattern: str) -> tuple[re.Pattern[str], int]:
    """The pattern for `re`, to be used with `search`, and the longest text on which that takes under a second or so.

    Raises PatternError for what `re` does not have, and for patterns on which backtracking may take exponential time.
    """
    translator = Translator(pattern, "python")
    text = translator.translate()
    try:
        return re.compile(text), int(MAX_STEPS ** (1 / max(1, translator.degree)))
    except (re.error, OverflowError) as error:
        raise PatternError(f"it is not a regular expression: {error}") from None


def check_pattern(pattern: str) -> None:
    """Raise PatternError for what is no pattern, or one that neither a grammar nor a check can take."""
    try:
        to_engine(pattern)
    except PatternError as error:
        if not error.only_here:
            raise
        to_wide(pattern)
        to_python(pattern)


def _for_engine(pattern: str, target: Target) -> str:
    """For the inside of JSON strings."""
    translator = Translator(pattern, target)
    text = translator.translate()
    spare = spare_character(translator.classes, joined="|" in pattern)
    return _hex(Translator(pattern, target, spare).translate() if spare else text)


def _hex(text: str) -> str:
    """`\\uXXXX` and `\\xXX` as the engine writes them."""
    escapes = r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|.)"
    return re.sub(escapes, lambda m: rf"\x{{{m[1] or m[2]}}}" if m[1] or m[2] else m[0], text)
