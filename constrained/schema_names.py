"""What a schema says about the names of properties, in terms of patterns and lists."""

from __future__ import annotations

from typing import Any

from .schema_normal import Normal

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
