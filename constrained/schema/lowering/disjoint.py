"""Shows that no value satisfies two schemas at once, so that `oneOf` may be read as `anyOf`. It never guesses: False is
"not shown".
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from ..normal import TYPES, Normal
from ..validation import Validation

Json = Any
_DEPTH = 6
_MAX_VALUES = 200
MAX_STEPS = 20_000  # of all proofs for one schema; what is not shown by then is left to checks


class Disjointness:
    """Over the parts of one normalised schema."""

    def __init__(self, normal: Normal, validation: Validation) -> None:
        self._normal = normal
        self._validation = validation
        self._types: dict[
            tuple[int, int], tuple[Json, set[str]]
        ] = {}  # with the schema, so that its id() stays its own
        self._steps = 0

    def all_disjoint(self, parts: list[Json]) -> bool:
        return all(self.disjoint(one, other) for one, other in combinations(parts, 2))

    def disjoint(self, one: Json, other: Json, depth: int = _DEPTH) -> bool:
        """Whether it is shown that no value satisfies both."""
        if one is False or other is False:
            return True
        self._steps += 1
        if one is True or other is True or depth == 0 or self._steps > MAX_STEPS:
            return False
        for finite, rest in ((one, other), (other, one)):
            values = self.values(finite)
            if values is not None and len(values) <= _MAX_VALUES:
                return not any(self._validation.is_valid(rest, value) for value in values)
        for part, rest in ((one, other), (other, one)):
            branches = part.get("anyOf") or part.get("oneOf")
            if branches and all(self.disjoint(branch, rest, depth - 1) for branch in branches):
                return True
        mine, yours = self._conjuncts(one), self._conjuncts(other)
        return all(self._by_type(kind, mine, yours, depth) for kind in self.types(one) & self.types(other))

    def holds(self, part: Json, value: Json) -> bool:
        return self._validation.is_valid(part, value)

    def values(self, part: Json) -> list[Json] | None:
        """The values that `part` allows, where they are listed in it."""
        if isinstance(part, bool):
            return None if part else []
        for view in self._conjuncts(part):
            listed = [view["const"]] if "const" in view else view.get("enum")
            if listed is not None:
                return [value for value in listed if self._validation.is_valid(part, value)]
        return None

    def types(self, part: Json, depth: int = _DEPTH) -> set[str]:
        """The types that a value of `part` may have ("number" beside "integer" stands for fractions)."""
        if isinstance(part, bool):
            return set(TYPES) if part else set()
        key = (id(part), depth)
        if key not in self._types:
            self._types[key] = part, self._find_types(part, depth)
        return self._types[key][1]

    def _find_types(self, part: dict[str, Json], depth: int) -> set[str]:
        found: set[str] = set(TYPES)
        for view in self._conjuncts(part):
            if "type" in view:
                named = {view["type"]} if isinstance(view["type"], str) else set(view["type"])
                found &= named | ({"integer"} if "number" in named else set())
            if "enum" in view or "const" in view:
                found &= {kind for value in [*view.get("enum", []), *_const(view)] for kind in _types_of(value)}
            for keyword in ("anyOf", "oneOf"):
                if keyword in view and depth:
                    found &= set().union(*(self.types(branch, depth - 1) for branch in view[keyword]))
        return found

    def _conjuncts(self, part: Json) -> list[dict[str, Json]]:
        """The schema objects that all apply to a value of `part`."""
        found: list[dict[str, Json]] = []
        todo = [part]
        while todo and len(found) < 50:
            each = todo.pop(0)
            if isinstance(each, dict) and all(each is not known for known in found):
                found.append(each)
                todo += each.get("allOf", [])
                if "$ref" in each:
                    todo.append(self._normal.deref(each))
        return found

    def _by_type(self, kind: str, mine: list[dict[str, Json]], yours: list[dict[str, Json]], depth: int) -> bool:
        if kind == "object":
            return self._objects(mine, yours, depth)
        pairs = [(one, other) for one in mine for other in yours]
        match kind:
            case "array":
                return any(self._arrays(one, other, depth) for one, other in pairs)
            case "string":
                return any(_lengths(one, other) or _lengths(other, one) for one, other in pairs)
            case "integer" | "number":
                return any(_ranges(one, other) for one, other in pairs)
            case _:
                return False

    def _objects(self, mine: list[dict[str, Json]], yours: list[dict[str, Json]], depth: int) -> bool:
        names = dict.fromkeys(name for each in (*mine, *yours) for name in each.get("required", []))
        return any(
            self.disjoint(self._property(one, name), self._property(other, name), depth - 1)
            for name in names
            for one in mine
            for other in yours
        )

    def _property(self, part: dict[str, Json], name: str) -> Json:
        """A schema that a property of this name must satisfy (where several do, one of them)."""
        if name in part.get("properties", {}):
            return part["properties"][name]
        if part.get("patternProperties"):
            return True
        return part.get("additionalProperties", True)

    def _arrays(self, one: dict[str, Json], other: dict[str, Json], depth: int) -> bool:
        low = max(one.get("minItems", 0), other.get("minItems", 0))
        if low > min(one.get("maxItems", low), other.get("maxItems", low)):
            return True
        return any(self.disjoint(_item(one, i), _item(other, i), depth - 1) for i in range(min(low, 20)))


def _const(view: dict[str, Json]) -> list[Json]:
    return [view["const"]] if "const" in view else []


def _types_of(value: Json) -> tuple[str, ...]:
    if isinstance(value, float):
        return ("integer", "number") if value == int(value) else ("number",)
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return (names.get(type(value), "null"),)


def _item(part: dict[str, Json], index: int) -> Json:
    prefix = part.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else part.get("items", True)


def _lengths(low: dict[str, Json], high: dict[str, Json]) -> bool:
    return low.get("minLength", 0) > high.get("maxLength", low.get("minLength", 0))


def _ranges(one: dict[str, Json], other: dict[str, Json]) -> bool:
    for low, high in ((one, other), (other, one)):
        for minimum, open_low in ((low.get("minimum"), False), (low.get("exclusiveMinimum"), True)):
            for maximum, open_high in ((high.get("maximum"), False), (high.get("exclusiveMaximum"), True)):
                if minimum is None or maximum is None:
                    continue
                if minimum > maximum or (minimum == maximum and (open_low or open_high)):
                    return True
    return False
