"""Which parts of a schema apply to which values of a document for certain, and which of them are checked there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .lowering.lowered import Lowered
from .normal import Normal, parts
from .validation import Validation, matcher

Json = Any
Path = list[str | int]


@dataclass(frozen=True, eq=False)
class CheckPlace:
    """A schema object and what applies below it.

    check: a value here is validated when it closes. unique, names: its items are compared, its property names validated
    as they come.
    """

    schema: dict[str, Json]
    pointer: str
    check: bool
    unique: bool
    names: bool


def checks_text(normal: Normal, lowered: Lowered) -> str:
    """What is to be checked, as the JSON text that `Places` reads; "" where the grammar says everything."""
    marks, distinct = _marks(normal, lowered), any(_leaves_names_open(part) for part in parts(normal.schema))
    if not marks and not distinct:
        return ""
    said = {"draft": normal.draft, "schema": normal.schema, "checked": marks, "distinct": distinct}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def _leaves_names_open(part: dict[str, Json]) -> bool:
    """Whether a schema describes properties that it does not name: a grammar lets one name come again and again."""
    counted = part.keys() & {"minProperties", "maxProperties"} and "additionalProperties" not in part
    said = part.keys() & {"patternProperties", "propertyNames"} or part.get("additionalProperties", False) is not False
    return bool(counted or said)


def _marks(normal: Normal, lowered: Lowered) -> list[Json]:
    """[path, pointer, keywords] of every schema object that is checked, keywords being those that a check is for."""
    inexact = _inexact(lowered)
    marks: list[Json] = []
    for path, schema in _walk(normal.schema):
        keywords = set(lowered.left.get(id(schema), ()))
        if any(id(branch) in inexact for branch in lowered.branches.get(id(schema), ())):
            keywords.add("anyOf")
        if keywords:
            marks.append([path, normal.pointer(schema), sorted(keywords)])
    return marks


def _inexact(lowered: Lowered) -> set[int]:
    """The schema objects which the grammar does not enforce in full, themselves or in what stands below them."""
    above: dict[int, list[int]] = {}
    for children in (lowered.definite, lowered.branches):
        for owner, inner in children.items():
            for part in inner:
                above.setdefault(id(part), []).append(owner)
    todo = [owner for owner, keywords in lowered.left.items() if keywords]
    found = set(todo)
    while todo:
        for owner in above.get(todo.pop(), ()):
            if owner not in found:
                found.add(owner)
                todo.append(owner)
    return found


def _walk(root: Json) -> list[tuple[Path, dict[str, Json]]]:
    """Every schema object that stands where it applies for certain to something, with the path to it."""
    found = []
    todo: list[tuple[Path, Json]] = [([], root)]
    todo += [
        (["$defs", name], part) for name, part in (root.get("$defs", {}) if isinstance(root, dict) else {}).items()
    ]
    while todo:
        path, schema = todo.pop()
        if isinstance(schema, dict):
            found.append((path, schema))
            for keyword in ("properties", "patternProperties"):
                todo += [([*path, keyword, name], part) for name, part in schema.get(keyword, {}).items()]
            for keyword in ("prefixItems", "allOf"):
                todo += [([*path, keyword, i], part) for i, part in enumerate(schema.get(keyword, []))]
            for keyword in ("additionalProperties", "items"):
                todo.append(([*path, keyword], schema.get(keyword)))
    return sorted(found, key=lambda each: [str(part) for part in each[0]])


class Places:
    """A schema's places, looked up by the properties and items that lead to them. Shared by all its completions.

    root: what applies to the whole document. distinct: whether no object in it may have one name twice.
    """

    def __init__(self, checks: Json) -> None:
        self.distinct: bool = checks["distinct"]
        self._schema = checks["schema"]
        self._validation = Validation(self._schema, checks["draft"])
        self._places: dict[int, CheckPlace] = {}
        self._marked: dict[int, tuple[str, set[str]]] = {}
        for path, pointer, keywords in checks["checked"]:
            self._marked[id(_at(self._schema, path))] = (pointer, set(keywords))
        self._useful = self._leading_to_checks()
        self._found: dict[tuple[tuple[int, ...], str | int], tuple[CheckPlace, ...]] = {}
        self.root = self._expand([self._schema])

    def problem(self, place: CheckPlace, value: Json) -> str:
        """What is wrong with a value at a place that checks it; "" for nothing."""
        if not place.check:
            return ""
        error = self._validation.error(place.schema, value)
        if error is None:
            return ""
        path = "".join(f"/{part}" for part in error.relative_schema_path)
        return f"{error.validator} at {place.pointer}{path}: {error.message[:200]}"

    def name_problem(self, place: CheckPlace, name: str) -> str:
        """The same for the name of a property of an object at a place."""
        if not place.names:
            return ""
        error = self._validation.error(place.schema["propertyNames"], name)
        return f"propertyNames at {place.pointer}/propertyNames: {error.message[:200]}" if error else ""

    def of_property(self, places: tuple[CheckPlace, ...], name: str) -> tuple[CheckPlace, ...]:
        """What applies to the property `name` of an object to which `places` apply."""
        return self._below(places, name)

    def of_item(self, places: tuple[CheckPlace, ...], index: int) -> tuple[CheckPlace, ...]:
        """What applies to item `index` of an array to which `places` apply."""
        return self._below(places, index)

    def _below(self, places: tuple[CheckPlace, ...], step: str | int) -> tuple[CheckPlace, ...]:
        if not places:
            return ()
        key = (tuple(id(place) for place in places), step)
        if key not in self._found:
            below = _properties if isinstance(step, str) else _items
            found = self._expand([part for place in places for part in below(place.schema, step)])
            if len(self._found) >= 10_000:  # names that a model made up
                self._found.clear()
            self._found[key] = found
        return self._found[key]

    def _expand(self, schemas: list[Json]) -> tuple[CheckPlace, ...]:
        """The places of schemas and of all that applies together with them, as far as any check is reached by them."""
        found: dict[int, CheckPlace] = {}
        todo = list(schemas)
        while todo:
            schema = todo.pop(0)
            if isinstance(schema, dict) and id(schema) not in found:
                if id(schema) in self._useful:
                    found[id(schema)] = self._place(schema)
                todo += self._same(schema)
        return tuple(found.values())

    def _place(self, schema: dict[str, Json]) -> CheckPlace:
        if id(schema) not in self._places:
            pointer, keywords = self._marked.get(id(schema), ("", set()))
            early = {"uniqueItems", "propertyNames"}
            self._places[id(schema)] = CheckPlace(
                schema, pointer, bool(keywords - early), "uniqueItems" in keywords, "propertyNames" in keywords
            )
        return self._places[id(schema)]

    def _same(self, schema: dict[str, Json]) -> list[Json]:
        """What applies to the same value."""
        linked = [self._schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]] if "$ref" in schema else []
        return [*linked, *schema.get("allOf", [])]

    def _leading_to_checks(self) -> set[int]:
        """The schema objects at or below which something is checked."""
        above: dict[int, list[int]] = {}
        for _, schema in _walk(self._schema):
            below = [*self._same(schema), *schema.get("prefixItems", []), schema.get("items")]
            below += [*schema.get("properties", {}).values(), *schema.get("patternProperties", {}).values()]
            for part in [*below, schema.get("additionalProperties")]:
                if isinstance(part, dict):
                    above.setdefault(id(part), []).append(id(schema))
        todo = list(self._marked)
        found = set(todo)
        while todo:
            for owner in above.get(todo.pop(), ()):
                if owner not in found:
                    found.add(owner)
                    todo.append(owner)
        return found


def _properties(schema: dict[str, Json], name: str | int) -> list[Json]:
    known = schema.get("properties", {})
    found = [known[name]] if name in known else []
    found += [part for pattern, part in schema.get("patternProperties", {}).items() if matcher(pattern)(str(name))]
    if not found and name not in known:
        found.append(schema.get("additionalProperties"))
    return found


def _items(schema: dict[str, Json], index: str | int) -> list[Json]:
    prefix = schema.get("prefixItems", [])
    return [prefix[index] if isinstance(index, int) and index < len(prefix) else schema.get("items")]


def _at(schema: Json, path: Path) -> Json:
    for part in path:
        schema = schema[part]
    return schema
