"""Rewrites what an engine has no notion of (oneOf, not, if, dependencies) into anyOf, where that means the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from ..normal import TYPES, Normal
from .disjoint import Disjointness

Json = Any
Schema = dict[str, Json]

MAX_BRANCHES = 200  # of one anyOf or oneOf whose branches are compared pair by pair
MAX_REWRITTEN = 16  # alternatives that one rewritten keyword may add; several of them multiply
ABSENT_LIMIT = 4  # keywords of one schema that are rewritten


class Logic:
    """Lowers the logical keywords of schemas. branch: lowers a schema inside another that may or may not apply."""

    def __init__(self, normal: Normal, disjointness: Disjointness, branch: Callable[[Schema, Json], Json]) -> None:
        self._normal = normal
        self._disjointness = disjointness
        self._branch = branch

    def one_of(self, view: Schema, node: Schema, branch: Callable[[Schema, Json], Json]) -> tuple[Schema, bool]:
        """A schema for the oneOf of `node`, and whether it says all of it. branch: lowers one of its branches."""
        parts = [part for part in node["oneOf"] if part is not False]
        exclusive = self._one_presence(view, parts)
        if exclusive is not None:
            return exclusive, True
        lowered = {"anyOf": [branch(node, part) for part in parts]} if parts else {"anyOf": [False]}
        context = {key: value for key, value in view.items() if key in ("type", "properties", "required")}
        few = len(parts) <= MAX_BRANCHES
        return lowered, few and self._all_disjoint(context, parts)

    def _all_disjoint(self, context: Schema, parts: list[Json]) -> bool:
        """Whether at most one branch can hold, given what the schema around them says of the value's type."""
        if len(parts) < 2 or self._disjointness.all_disjoint(parts):
            return True
        if "type" not in context:
            return False
        narrowed = [{"type": context["type"], "allOf": [part]} for part in parts]
        return self._disjointness.all_disjoint(narrowed)

    def _one_presence(self, view: Schema, parts: list[Json]) -> Schema | None:
        """Exactly one of some sets of properties is there: oneOf of nothing but `required`, for objects."""
        if view.get("type") != "object" or not all(
            isinstance(part, dict) and set(part) == {"required"} for part in parts
        ):
            return None
        alternatives = []
        for i, part in enumerate(parts):
            others = [other["required"] for j, other in enumerate(parts) if j != i]
            for missing in _choices(others):
                absent = set(missing)
                if not absent & set(part["required"]):
                    alternatives.append({"required": part["required"], "properties": _absent(missing)})
            if len(alternatives) > MAX_REWRITTEN:
                return None
        return {"anyOf": alternatives or [False]}

    def extra(self, view: Schema, node: Schema, leave: Callable[[str], None], expand: bool) -> list[Json]:
        """Schemas that hold beside the rest of `node`. leave: is told the keywords which they do not say in full."""
        rewritten = self._dependencies(view, node) if expand else []
        if len(rewritten) > ABSENT_LIMIT or not expand:
            rewritten = []
            for keyword in ("dependentRequired", "dependentSchemas"):
                if keyword in view:
                    leave(keyword)
        if "not" in view:
            negated = self.negation(view["not"]) if expand else None
            if negated is None:
                leave("not")
            elif negated is not True:
                rewritten.append(negated)
        if "if" in view and view.keys() & {"then", "else"}:
            branches, exact = self._condition(view, node) if expand else (None, False)
            if branches is not None:
                rewritten.append(branches)
            if not exact:
                leave("if")
        return rewritten

    def _dependencies(self, view: Schema, node: Schema) -> list[Json]:
        found: list[Json] = []
        for name, needed in view.get("dependentRequired", {}).items():
            if needed:
                found.append({"anyOf": [{"properties": _absent([name])}, {"required": [name, *needed]}]})
        for name, part in view.get("dependentSchemas", {}).items():
            if part is True:
                continue
            present = {"required": [name]}
            with_it = [present, self._branch(node, part)]
            found.append({"anyOf": [{"properties": _absent([name])}, {"allOf": with_it}]})
        return found

    def _condition(self, view: Schema, node: Schema) -> tuple[Json, bool]:
        """if, then, else as two alternatives, and whether they say all of it."""
        when, then, other = view["if"], view.get("then", True), view.get("else", True)
        if isinstance(when, bool):
            return self._branch(node, then if when else other), True
        negated = self.negation(when, view.get("properties", {}))
        first = {"allOf": [self._branch(node, when), self._branch(node, then)]}
        second = self._branch(node, other)
        if negated is None:
            return ({"anyOf": [first, second]} if second is not True else None), False
        return {"anyOf": [first, {"allOf": [negated, second]}]}, True

    def negation(self, part: Json, properties: Schema | None = None) -> Json | None:
        """A schema for what `part` does not allow, or None where there is none without `not`.

        properties: what else is known of the value's properties; of one with few values the others can be listed.
        """
        if isinstance(part, bool):
            return not part
        if not part:
            return False
        known = set(part) & {"type", "required", "properties", "anyOf", "allOf", "not"}
        if known != set(part):
            return None
        options = [self._negated(keyword, part, properties or {}) for keyword in part]
        found = [option for option in options if option is not False]
        if any(option is None for option in found):
            return None
        return {"anyOf": found} if len(found) != 1 else found[0]

    def _negated(self, keyword: str, part: Schema, properties: Schema) -> Json | None:
        """The negation of one keyword."""
        value = part[keyword]
        match keyword:
            case "type":
                named = {value} if isinstance(value, str) else set(value)
                if "integer" in named and "number" not in named:
                    return None
                rest = [kind for kind in TYPES if kind not in named and not (kind == "integer" and "number" in named)]
                rest = [kind for kind in rest if not (kind == "integer" and "number" in rest)]
                return {"type": rest} if rest else False
            case "required":
                return (
                    {"anyOf": [{"type": "object", "properties": _absent([name])} for name in value]} if value else False
                )
            case "properties":
                return self._no_property(value, properties)
            case "anyOf":
                parts = [self.negation(each, properties) for each in value]
                return None if any(each is None for each in parts) else {"allOf": parts}
            case "allOf":
                parts = [self.negation(each, properties) for each in value]
                return None if any(each is None for each in parts) else {"anyOf": parts}
            case _:
                return None

    def _no_property(self, value: Schema, properties: Schema) -> Json | None:
        """Some property is there and is not what `value` says, where the other values it may have can be listed."""
        options: list[Json] = []
        for name, part in value.items():
            if part is True:
                continue
            allowed = self._disjointness.values(properties.get(name, True)) if name in properties else None
            if allowed is None:
                return None
            rest = [each for each in allowed if not self._disjointness.holds(part, each)]
            if rest:
                options.append({"type": "object", "required": [name], "properties": {name: {"enum": rest}}})
        if not options:
            return False
        return {"anyOf": options}


def _absent(names: list[str] | tuple[str, ...]) -> Schema:
    return dict.fromkeys(names, False)


def _choices(lists: list[list[str]]) -> list[tuple[str, ...]]:
    """One name out of every list, in all ways; nothing where that is too many ways."""
    ways = 1
    for each in lists:
        ways *= len(each)
    return list(product(*lists)) if 0 < ways <= MAX_REWRITTEN else [()] * (MAX_REWRITTEN + 1 if ways else 0)
