"""The names of properties, where a schema leaves only finitely many: listed, so that a grammar can name each of them
once. It never guesses: None is "not shown to be few".
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from ..grammar.patterns import PatternError, to_engine
from .document import Json
from .validation import END, matcher, string_matcher

MAX_COUNTED = 1000  # names of one object
MAX_STEPS = 1000  # characters that are tried on the way to the names of one pattern
_ENDLESS = re.compile(r"[*+.]|,\}|\[\^|\\[DwWsSpPbBk]|\(\?[=!<]|--")
_FULL = re.compile(r"\^.*\$", re.DOTALL)


@lru_cache(maxsize=1000)
def names_of_pattern(pattern: str, limit: int) -> tuple[str, ...] | None:
    """All texts in which a legal pattern is found, in order; None for more than `limit`, or where that is not known."""
    try:
        engine = to_engine(pattern)
    except PatternError:
        return None
    if not _FULL.fullmatch(pattern) or _ENDLESS.search(pattern) or "--" in engine:
        return None
    start = string_matcher(engine)
    names: dict[str, None] = {}
    todo, steps = [b'"'], 0
    while todo:
        text = todo.pop()
        state = start.deep_copy()
        state.consume_tokens(list(text))
        mask = int.from_bytes(state.compute_bitmask(), "little")
        if mask >> END & 1:
            names[json.loads(text)] = None
        nexts = [byte for byte in range(END) if mask >> byte & 1]
        todo += [text + bytes([byte]) for byte in reversed(nexts)]
        steps += len(nexts)
        if len(names) > limit or steps > MAX_STEPS:
            return None
    exact = matcher(pattern)
    return tuple(name for name in names if exact(name))


def names_of_schema(names: Json, limit: int) -> tuple[str, ...] | None:
    """All names that the schema of `propertyNames` allows; None as above."""
    if names is False:
        return ()
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return None
    keywords = names.keys() - {"type"}
    if keywords in ({"enum"}, {"const"}):
        listed = names.get("enum", [names.get("const")])
        found = tuple(dict.fromkeys(each for each in listed if isinstance(each, str)))
        return found if len(found) <= limit else None
    return names_of_pattern(names["pattern"], limit) if keywords == {"pattern"} else None


def possible_names(view: dict[str, Json], limit: int) -> list[str] | None:
    """The names that an object's properties may have by one schema object; None where they are not shown to be few."""
    allowed = names_of_schema(view.get("propertyNames", True), limit)
    if allowed is None and view.get("additionalProperties") is not False:
        return None
    known = dict.fromkeys(view.get("properties", ()))
    if view.get("additionalProperties") is False:
        for pattern in view.get("patternProperties", ()):
            names = names_of_pattern(pattern, limit)
            if names is None and allowed is None:
                return None
            exact = matcher(pattern)
            known.update(dict.fromkeys(names or [name for name in allowed or () if exact(name)]))
        return [name for name in known if allowed is None or name in allowed]
    return [*[name for name in known if name in (allowed or ())], *[n for n in allowed or () if n not in known]]
