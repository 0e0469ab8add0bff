"""Finds schemas that no finite value satisfies, and says which keywords are to blame. It never guesses: what is not
shown to be empty passes.

For every schema object the types are found of which it may have a value, as the least solution of what each says about
those inside it: a value of a schema that always needs another one of the same schema inside it is never found.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ..spec import Unenforced
from .document import refuse
from .finite_names import MAX_COUNTED, possible_names
from .normal import TYPES, Normal, parts
from .validation import Validation, matcher

Json = Any
Schema = dict[str, Json]

MAX_VIEWS = 200  # schemas about one value that are looked at together
MAX_VALUES = 200  # of an enum that are tried
_ALL = frozenset(TYPES)  # "number" beside "integer" stands for fractions
_NONE: frozenset[str] = frozenset()
_NUMBERS = frozenset({"integer", "number"})
_SIZES = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)


@dataclass
class _Found:
    """The types that are left, and what took the last of them: the keyword, and the empty schema inside, if any."""

    kinds: frozenset[str] = _ALL
    blame: Unenforced = field(default_factory=lambda: Unenforced("type", "", "it allows no type"))
    inside: Json = None

    def take(self, kinds: frozenset[str], keyword: str, pointer: str, reason: str, inside: Json = None) -> None:
        if self.kinds & kinds:
            self.kinds -= kinds
            self.blame, self.inside = Unenforced(keyword, pointer, reason), inside


def refuse_empty(normal: Normal, validation: Validation) -> None:
    """Raise ConstraintError for a schema that is shown to have no finite value."""
    if isinstance(normal.schema, dict):
        _Emptiness(normal, validation).refuse()


class _Emptiness:
    def __init__(self, normal: Normal, validation: Validation) -> None:
        self._normal = normal
        self._validation = validation
        self._kinds: dict[int, frozenset[str]] = {}
        self._readers: dict[int, dict[int, Schema]] = defaultdict(dict)
        self._reader: Schema = {}
        self._listed: dict[int, frozenset[str]] = {}

    def refuse(self) -> None:
        todo = {id(part): part for part in parts(self._normal.schema)}
        while todo:
            _, part = todo.popitem()  # the innermost come last in `parts`
            self._reader = part
            kinds = self._look(part).kinds
            if kinds != self._kinds.get(id(part), _NONE):
                self._kinds[id(part)] = kinds
                todo.update(self._readers[id(part)])
        if self._of(self._normal.schema):
            return
        found = self._look(self._normal.schema)
        seen: set[int] = set()
        while isinstance(found.inside, dict) and id(found.inside) not in seen:
            seen.add(id(found.inside))
            found = self._look(found.inside)
        blame, so = found.blame, ", so no value satisfies the schema"
        if isinstance(found.inside, dict):
            so = ", and its value needs another one of its kind inside it, without an end" + so.replace(
                "no", "no finite"
            )
        refuse(blame.keyword, blame.pointer, blame.reason + so)

    def _of(self, part: Json) -> frozenset[str]:
        """The types of which a schema has values, as far as is known by now."""
        if isinstance(part, bool):
            return _ALL if part else _NONE
        self._readers[id(part)][id(self._reader)] = self._reader
        return self._kinds.get(id(part), _NONE)

    def _look(self, part: Schema) -> _Found:
        found = _Found()
        views = self._views(part)
        if views is None:
            return found
        for view in views:
            self._one(view, found)
        self._numbers(views, found)
        self._sizes(views, found)
        self._items(views, found)
        self._properties(views, found)
        self._names(views, found)
        return found

    def _views(self, part: Schema) -> list[Schema] | None:
        """All that applies to the same value for certain; None for too much of it."""
        views: dict[int, Schema] = {}
        todo: list[Json] = [part]
        while todo:
            view = todo.pop()
            if isinstance(view, dict) and id(view) not in views:
                if len(views) == MAX_VIEWS:
                    return None
                views[id(view)] = view
                todo += [*view.get("allOf", ()), *([self._normal.deref(view)] if "$ref" in view else [])]
        return list(views.values())

    def _one(self, view: Schema, found: _Found) -> None:
        """What one schema says of a value's type."""
        at = self._normal.pointer(view)
        if "type" in view:
            named = {view["type"]} if isinstance(view["type"], str) else set(view["type"])
            allowed = named | ({"integer"} if "number" in named else set())
            found.take(_ALL - allowed, "type", f"{at}/type", "the rest of the schema allows no such type")
        for keyword in ("enum", "const"):
            if keyword in view:
                reason = "the rest of the schema allows no value in it" if view[keyword] != [] else "it lists no value"
                found.take(_ALL - self._values(view), keyword, f"{at}/{keyword}", reason)
        for keyword in ("anyOf", "oneOf"):
            if keyword in view:
                branches = [(self._of(branch), branch) for branch in view[keyword]]
                union = _NONE.union(*(kinds for kinds, _ in branches))
                inside = next((branch for _, branch in branches if branch is not False), None) if not union else None
                found.take(_ALL - union, keyword, f"{at}/{keyword}", "none of its branches is possible", inside)
        for i, branch in enumerate(view.get("allOf", ())):
            if branch is False:
                found.take(_ALL, "allOf", f"{at}/allOf/{i}", "it is false")
        if "$ref" in view and self._normal.deref(view) is False:
            found.take(_ALL, "$ref", f"{at}/$ref", "it leads to false")
        if "not" in view and (view["not"] is True or view["not"] == {}):
            found.take(_ALL, "not", f"{at}/not", "it forbids every value")

    def _values(self, view: Schema) -> frozenset[str]:
        """The types of the values that a schema lists."""
        if id(view) not in self._listed:
            listed = [view["const"]] if "const" in view else view["enum"]
            if len(listed) <= MAX_VALUES:
                listed = [each for each in listed if self._validation.is_valid(view, each)]
            self._listed[id(view)] = _NONE.union(*(_kinds_of(each) for each in listed))
        return self._listed[id(view)]

    def _numbers(self, views: list[Schema], found: _Found) -> None:
        low = self._bound(views, "minimum", "exclusiveMinimum", 1)
        high = self._bound(views, "maximum", "exclusiveMaximum", -1)
        if low is None or high is None:
            return
        (least, open_low, keyword, pointer), (most, open_high, other, there) = low, high
        reason = f"{json.dumps(least)} and {other} {json.dumps(most)} (at {there}) leave no"
        if least > most or (least == most and (open_low or open_high)):
            found.take(_NUMBERS, keyword, pointer, f"{reason} number between them")
        elif "number" not in found.kinds:
            first = math.floor(least) + 1 if open_low else math.ceil(least)
            last = math.ceil(most) - 1 if open_high else math.floor(most)
            if first > last:
                found.take(_NUMBERS, keyword, pointer, f"{reason} whole number between them")

    def _bound(self, views: list[Schema], closed: str, exclusive: str, sign: int) -> tuple[Any, bool, str, str] | None:
        """The narrowest bound on one side: value, whether it is exclusive, keyword and pointer."""
        bounds = [
            (view[keyword], keyword == exclusive, keyword, f"{self._normal.pointer(view)}/{keyword}")
            for view in views
            for keyword in (closed, exclusive)
            if keyword in view
        ]
        return max(bounds, key=lambda bound: (sign * bound[0], bound[1]), default=None)

    def _sizes(self, views: list[Schema], found: _Found) -> None:
        for kind, least, most in _SIZES:
            low, high = self._bound(views, least, "", 1), self._bound(views, most, "", -1)
            if low and high and low[0] > high[0]:
                found.take(frozenset({kind}), least, low[3], f"{low[0]} is above {most} {high[0]} (at {high[3]})")

    def _items(self, views: list[Schema], found: _Found) -> None:
        low = self._bound(views, "minItems", "", 1)
        needed, array = low[0] if low else 0, frozenset({"array"})
        for view in views:
            at, prefix = self._normal.pointer(view), view.get("prefixItems", [])
            if "contains" in view and view.get("minContains", 1) and not self._of(view["contains"]):
                found.take(array, "contains", f"{at}/contains", "an item of it is needed", view["contains"])
            for part in [*prefix[:needed], *([view["items"]] if needed > len(prefix) and "items" in view else [])]:
                if low and not self._of(part):
                    found.take(array, "minItems", low[3], f"at least {needed} items are needed", part)

    def _properties(self, views: list[Schema], found: _Found) -> None:
        required: dict[str, str] = {}
        for view in views:
            for name in view.get("required", ()):
                required.setdefault(name, f"{self._normal.pointer(view)}/required")
        for name, pointer in required.items():
            below = [part for view in views for part in _below(view, name)]
            kinds = _ALL.intersection(*(self._of(part) for part in below))
            if not kinds:
                empty = next((part for part in below if not self._of(part)), None)
                why = {id(False): " but forbidden", id(None): ", and its schemas have no type in common"}
                reason = f"property {json.dumps(name)[:100]} is needed{why.get(id(empty), '')}"
                found.take(frozenset({"object"}), "required", pointer, reason, empty)

    def _names(self, views: list[Schema], found: _Found) -> None:
        """Whether as many different names are possible as are needed."""
        low, high = self._bound(views, "minProperties", "", 1), self._bound(views, "maxProperties", "", -1)
        needed = list(dict.fromkeys(name for view in views for name in view.get("required", ())))
        objects = frozenset({"object"})
        if high and len(needed) > high[0]:
            found.take(objects, "maxProperties", high[3], f"{high[0]} is less than the {len(needed)} that are required")
        if not low or low[0] > MAX_COUNTED:
            return
        for view in views:
            names = possible_names(view, low[0])
            if names is None:
                continue
            left = [name for name in names if self._may_be_there(views, name)]
            if len(left) < low[0]:
                listed = ", ".join(json.dumps(name, ensure_ascii=False) for name in left[:10]) or "none"
                reason = f"{low[0]} different names are needed; those that are possible: {listed}"
                found.take(objects, "minProperties", low[3], reason)

    def _may_be_there(self, views: list[Schema], name: str) -> bool:
        return bool(_ALL.intersection(*(self._of(part) for view in views for part in _below(view, name))))


def _below(view: Schema, name: str) -> list[Json]:
    """The schemas that one schema has for a property."""
    below = [view["properties"][name]] if name in view.get("properties", ()) else []
    below += [part for pattern, part in view.get("patternProperties", {}).items() if matcher(pattern)(name)]
    return below or ([view["additionalProperties"]] if "additionalProperties" in view else [])


def _kinds_of(value: Json) -> frozenset[str]:
    if isinstance(value, bool | None):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        return _NUMBERS
    return frozenset({{str: "string", list: "array", dict: "object"}[type(value)]})
