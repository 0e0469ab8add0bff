"""A schema for xgrammar: only what it was measured to enforce. It passes over everything else in silence, so checks do
that.

xgrammar 0.2 reads keywords only beside an explicit `type` that is one name, heeds a pattern or lengths but not both,
and has no notion of oneOf, not, if, dependencies, contains, uniqueItems, propertyNames and most formats.
"""

from __future__ import annotations

import math
from typing import Any

from ...grammar.patterns import PatternError, to_engine
from ..declare_names import choices_of_names
from ..normal import Normal
from ..validation import Validation
from .lower import MAX_ITEMS, finite_values
from .lowered import Lowered
from .names import named_properties

Json = Any

_READ = {
    "null": {"type"},
    "boolean": {"type"},
    "integer": {"type", "minimum", "maximum"},
    "number": {"type"},
    "string": {"type", "pattern", "minLength", "maxLength"},
    "array": {"type", "items", "minItems", "maxItems"},
    "object": {"type", "properties", "required", "additionalProperties"},
}
_MAX_LENGTH = 1000  # xgrammar unrolls counts


def lower_for_xgrammar(normal: Normal, validation: Validation, *, extras: bool = True) -> Lowered:
    """As `lower`, for the other engine."""
    return _XGrammarLowering(normal, validation, extras).run()


class _XGrammarLowering:
    def __init__(self, normal: Normal, validation: Validation, extras: bool) -> None:
        self._extras = extras
        self._normal = normal
        self._validation = validation
        self._out = Lowered()

    def run(self) -> Lowered:
        schema = self._normal.schema
        if isinstance(schema, bool):
            self._out.grammar = {} if schema else False
            return self._out
        definitions = {name: self._part(part) for name, part in schema.get("$defs", {}).items()}
        root = self._lower({keyword: value for keyword, value in schema.items() if keyword != "$defs"}, schema)
        self._out.grammar = {**root, "$defs": definitions} if isinstance(root, dict) and definitions else root
        return self._out

    def _part(self, part: Json) -> Json:
        return self._lower(part, part) if isinstance(part, dict) else part

    def _definite(self, owner: dict[str, Json], part: Json) -> Json:
        self._out.definite.setdefault(id(owner), []).append(part)
        return self._part(part)

    def _lower(self, view: dict[str, Json], node: dict[str, Json]) -> Json:
        if "enum" in view or "const" in view:
            values = finite_values(view, node, self._validation)
            return {"enum": values} if values else False
        if set(view) == {"$ref"}:
            self._out.definite.setdefault(id(node), []).append(self._normal.deref(view))
            return {"$ref": view["$ref"]}
        if set(view) == {"anyOf"} and False not in view["anyOf"]:
            self._out.branches[id(node)] = [part for part in view["anyOf"] if isinstance(part, dict)]
            return {"anyOf": [self._part(part) for part in view["anyOf"]]}
        kind = view.get("type")
        if not isinstance(kind, str):
            self._leave(node, view.keys())
            return {}
        read = {keyword: value for keyword, value in view.items() if keyword in _READ[kind]}
        self._leave(node, view.keys() - read.keys())
        match kind:
            case "integer":
                if self._normal.draft == 4:
                    self._leave(node, {"type"})  # xgrammar takes 1.0 for an integer
                for bound, whole in (("minimum", math.ceil), ("maximum", math.floor)):
                    if bound in read:
                        read[bound] = whole(read[bound])
            case "string":
                self._string(read, node)
            case "array":
                self._array(read, node)
            case "object":
                self._object(read, node)
        return read

    def _leave(self, node: dict[str, Json], keywords: Any) -> None:
        if keywords:
            self._out.left.setdefault(id(node), set()).update(keywords)

    def _drop(self, read: dict[str, Json], node: dict[str, Json], *keywords: str) -> None:
        for keyword in keywords:
            if keyword in read:
                del read[keyword]
                self._leave(node, {keyword})

    def _string(self, read: dict[str, Json], node: dict[str, Json]) -> None:
        if "pattern" in read and not _is_whole(read["pattern"]):
            self._drop(read, node, "pattern")
        if "pattern" in read:
            self._drop(read, node, "minLength", "maxLength")
            self._leave(node, {"pattern"})  # its dialect is xgrammar's own
        elif max(read.get("minLength", 0), read.get("maxLength", 0)) > _MAX_LENGTH:
            self._drop(read, node, "minLength", "maxLength")

    def _array(self, read: dict[str, Json], node: dict[str, Json]) -> None:
        if max(read.get("minItems", 0), read.get("maxItems", 0)) > MAX_ITEMS:
            self._drop(read, node, "minItems", "maxItems")
        if "prefixItems" in node:
            self._drop(read, node, "items")
        elif "items" in read:
            read["items"] = self._definite(node, read["items"])

    def _object(self, read: dict[str, Json], node: dict[str, Json]) -> None:
        if "patternProperties" in node:
            self._drop(read, node, "additionalProperties", "properties", "required")
            return
        properties = read.get("properties", {})
        possible = False not in properties.values()
        if possible and read.get("additionalProperties") is False:
            for only in (each[0] for each in choices_of_names(node) or () if len(each) == 1):
                read["required"] = [*read.get("required", []), *only.get("required", [])]
        named = self._named(node) if possible else []
        if set(read.get("required", [])) - {*properties, *named} or not possible:
            self._drop(read, node, "required", "properties", "additionalProperties")
        elif properties or named:
            lowered = {name: self._definite(node, part) for name, part in properties.items()}
            read["properties"] = {**lowered, **{name: {} for name in named if name not in lowered}}
        if named:
            read["additionalProperties"] = False
        elif read.get("additionalProperties", True) is not False:
            self._drop(read, node, "additionalProperties")
            if properties:
                self._leave(node, {"properties"})  # a name that is declared may come as an additional one
            read["additionalProperties"] = True

    def _named(self, node: dict[str, Json]) -> list[str]:
        """The only names that an object may have where it is closed; no schema is ever merged into another here."""
        if self._extras or "additionalProperties" in node:
            return []
        found = named_properties(self._normal, node)
        return list(found.names) if found is not None and not found.patterns else []


def _is_whole(pattern: str) -> bool:
    """Whether xgrammar, which matches whole strings, reads a pattern as it is meant."""
    try:
        to_engine(pattern)
    except PatternError:
        return False
    return pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$") and "|" not in pattern
