"""Declares properties by name where patterns, or a schema of names, leave only a few. The meaning stays the same.

A grammar lets a declared property come once, and counts it; a name that matches a pattern could come again and again.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

from .document import Json
from .finite_names import names_of_pattern, possible_names
from .normal import Normal, parts
from .validation import matcher

MAX_NAMES = 64  # of one object that are declared
MAX_SCHEMAS = 200  # that the schemas of one object's names may hold, as each name has its own
MAX_CHOICES = 64  # of names, where an object must have, or may have, only so many of them

Schema = dict[str, Json]


def declare_names(normal: Normal) -> None:
    """Change the normal form in place."""
    every = list(parts(normal.schema))
    tracked = any("unevaluatedProperties" in part for part in every)  # it sees which keyword a name is known by
    for part in reversed(every):  # the innermost first
        if "propertyNames" in part and not tracked:
            _declare_all(part, normal)
        elif "patternProperties" in part:
            _declare_of_patterns(part, normal)


def choices_of_names(view: Schema) -> list[list[Schema]] | None:
    """What `minProperties` and `maxProperties` say of an object with none but declared properties.

    Alternatives, of which one holds, for each of the two; None for too many. A single one is the only way.
    """
    required = set(view.get("required", ()))
    names = [name for name, part in view.get("properties", {}).items() if part is not False and name not in required]
    least = max(0, view.get("minProperties", 0) - len(required))
    spared = max(0, len(names) + len(required) - view.get("maxProperties", len(names) + len(required)))
    found: list[list[Schema]] = []
    ways = 1
    for size, alternative in ((least, _needed), (spared, _absent)):
        if size:
            ways *= comb(len(names), size)
            if not 0 < ways <= MAX_CHOICES:
                return None
            found.append([alternative(chosen) for chosen in combinations(names, size)])
    return found


def _needed(names: tuple[str, ...]) -> Schema:
    return {"required": list(names)}


def _absent(names: tuple[str, ...]) -> Schema:
    return {"properties": dict.fromkeys(names, False)}


def _declare_all(part: Schema, normal: Normal) -> None:
    """Of an object whose names a schema lists."""
    names = possible_names(part, MAX_NAMES)
    if names is None:
        return
    properties = {name: _described(part, name, part.get("patternProperties", {}), normal) for name in names}
    _replace(part, properties, ("patternProperties", "propertyNames"), closed=True)


def _declare_of_patterns(part: Schema, normal: Normal) -> None:
    """Of the patterns that only few names match."""
    patterns = part["patternProperties"]
    few = {pattern: names for pattern in patterns if (names := names_of_pattern(pattern, MAX_NAMES)) is not None}
    chosen = {pattern: patterns[pattern] for pattern in few}
    names = dict.fromkeys([*part.get("properties", ()), *(name for each in few.values() for name in each)])
    properties = {name: _described({**part, "additionalProperties": True}, name, chosen, normal) for name in names}
    closed = len(few) == len(patterns) and part.get("additionalProperties") is False
    if few and len(names) - len(part.get("properties", ())) <= MAX_NAMES:
        _replace(part, properties, tuple(few), closed=closed)


def _described(part: Schema, name: str, patterns: Schema, normal: Normal) -> Json:
    """What an object says of a property of this name."""
    found = [part["properties"][name]] if name in part.get("properties", ()) else []
    found += [each for pattern, each in patterns.items() if matcher(pattern)(name)]
    if not found:
        return part.get("additionalProperties", True)
    if False in [each for each in found if isinstance(each, bool)]:
        return False
    found = [each for each in found if each is not True]
    if len(found) < 2:
        return found[0] if found else True
    both: Schema = {"allOf": found}
    normal.pointers[id(both)] = normal.pointer(part)
    return both


def _replace(part: Schema, properties: Schema, gone: tuple[str, ...], *, closed: bool) -> None:
    """Put in the declared properties, unless they are too large or more than a grammar can count.

    gone: keywords, or patterns of patternProperties, that say nothing beside them any more.
    """
    new = {key: value for key, value in part.items() if key not in gone}
    new["properties"] = properties
    left = {pattern: each for pattern, each in new.pop("patternProperties", {}).items() if pattern not in gone}
    if left:
        new["patternProperties"] = left
    if closed:
        new["additionalProperties"] = False
    size = sum(1 for each in properties.values() for _ in parts(each))
    counted = new.keys() & {"minProperties", "maxProperties"}
    if size > MAX_SCHEMAS or (counted and (left or not closed or choices_of_names(new) is None)):
        return
    part.clear()
    part.update(new)
