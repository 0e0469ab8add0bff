"""What a schema says about the names of properties, in terms of patterns and lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..normal import MAX_PROPERTIES, Normal

Json = Any

MAX_SCHEMAS = 1000


def names_pattern(names: Json) -> str | None:
    """A pattern that finds just the names which the schema of `propertyNames` allows; None where there is none."""
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return None
    keywords = names.keys() - {"type"}
    if keywords == {"pattern"}:
        return names["pattern"]
    if keywords and keywords <= {"minLength", "maxLength"}:
        return rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    if keywords in ({"enum"}, {"const"}):
        listed = [each for each in names.get("enum", [names.get("const")]) if isinstance(each, str)]
        return f"^(?:{'|'.join(_escaped(each) for each in listed)})$" if listed else None
    return None


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\.+*?()|[]{}^$-/" else char for char in text)


def evaluated_names(normal: Normal, part: dict[str, Json]) -> tuple[dict[str, Json], bool] | None:
    """The names that `unevaluatedProperties` of `part` lets pass, and whether all of them always do.

    None where they cannot be listed: names are then evaluated by patterns, or as additional ones.
    """
    names: dict[str, Json] = {}
    always = True
    todo = [(part, True)]
    for _ in range(MAX_SCHEMAS):
        if not todo:
            return names, always
        each, certain = todo.pop(0)
        if not isinstance(each, dict):
            continue
        if each.keys() & {"patternProperties", "additionalProperties"} or (
            "unevaluatedProperties" in each and each is not part
        ):
            return None
        found = each.get("properties", {})
        always &= certain or not found
        names.update(dict.fromkeys(found, True))
        todo += [(inner, certain) for inner in each.get("allOf", [])]
        todo += [(normal.deref(each), certain)] if "$ref" in each else []
        todo += [(inner, False) for keyword in ("anyOf", "oneOf") for inner in each.get(keyword, [])]
        todo += [(each[keyword], False) for keyword in ("if", "then", "else") if keyword in each]
        todo += [(inner, False) for inner in each.get("dependentSchemas", {}).values()]
    return None


@dataclass
class Named:
    """The properties that a schema names. names: each with whether a schema describes its value. patterns: of names."""

    names: dict[str, bool] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)


def named_properties(normal: Normal, part: dict[str, Json]) -> Named | None:
    """What `part`, and all that applies or may apply to the same object, names.

    None where nothing is named, and where the schema itself says more of other names: then they are wanted.
    """
    found, least = Named(), 0
    todo: list[Json] = [part]
    seen: set[int] = set()
    while todo:
        each = todo.pop(0)
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        others = [each[key] for key in ("additionalProperties", "unevaluatedProperties") if key in each]
        if len(seen) > MAX_SCHEMAS or "propertyNames" in each or any(other is not False for other in others):
            return None
        least = max(least, each.get("minProperties", 0))
        found.patterns.update(dict.fromkeys(each.get("patternProperties", {})))
        found.names.update(dict.fromkeys(each.get("properties", {}), True))
        for name in _without_schema(each):
            found.names.setdefault(name, False)
        todo += [normal.deref(each)] if "$ref" in each else []
        todo += [inner for keyword in ("allOf", "anyOf", "oneOf") for inner in each.get(keyword, [])]
        todo += [each[keyword] for keyword in ("if", "then", "else") if keyword in each]
        todo += each.get("dependentSchemas", {}).values()
    if not 0 < len(found.names) <= MAX_PROPERTIES or (least > len(found.names) and not found.patterns):
        return None
    return found


def _without_schema(part: dict[str, Json]) -> list[str]:
    """The names that a schema's own keywords give to properties without a word about their values."""
    names = [*part.get("required", []), *part.get("dependentSchemas", {})]
    for name, needed in part.get("dependentRequired", {}).items():
        names += [name, *needed]
    listed = [*part.get("enum", []), part.get("const")]
    return names + [name for each in listed if isinstance(each, dict) for name in each]
