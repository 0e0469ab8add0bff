"""Reads a JSON Schema's text within limits and resolves its references. Nothing is ever fetched."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from ..spec import MAX_CONSTRAINT_BYTES, ConstraintError, Unenforced

MAX_DEPTH = 100  # how deep objects and arrays may be nested in a schema's text

Json = Any

_DRAFTS = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
_ONE = ("additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_ONE += ("unevaluatedItems", "unevaluatedProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "definitions", "$defs")


def refuse(keyword: str, pointer: str, reason: str) -> NoReturn:
    """Raise the ConstraintError of one keyword."""
    raise ConstraintError(f"{keyword} at {pointer or '/'}: {reason}", [Unenforced(keyword, pointer, reason)])


class Elsewhere(Exception):
    """A reference leads out of the schema."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def kind_of(value: Json) -> str:
    """What a value of JSON is, for a sentence."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def parse_json(text: str, what: str) -> Json:
    """The value of a JSON text. Raises ConstraintError beyond the limits on size and depth, and for bad JSON."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_CONSTRAINT_BYTES:
        raise ConstraintError(f"{what} has {size} bytes; at most {MAX_CONSTRAINT_BYTES} are allowed")
    depth = deepest = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ConstraintError(f"{what} is nested {deepest} deep; at most {MAX_DEPTH} levels are allowed")
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=finite)
    except ValueError as error:
        raise ConstraintError(f"{what} is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def finite(text: str) -> float:
    """A number of JSON; ValueError for one that no double holds."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


@dataclass(frozen=True)
class ReferenceTarget:
    """Where a reference leads. base: the URI against which references inside it are resolved."""

    schema: Json
    pointer: str
    base: str
    draft: int


@dataclass
class SchemaPlace:
    """Where a walk through a document is. base: the URI against which references are resolved there."""

    pointer: str
    base: str
    draft: int

    def at(self, *parts: str | int) -> str:
        return self.pointer + "".join("/" + escape(str(part)) for part in parts)

    def under(self, *parts: str | int) -> SchemaPlace:
        return SchemaPlace(self.at(*parts), self.base, self.draft)


@dataclass
class _Resource:
    schema: Json
    pointer: str
    draft: int
    anchors: dict[str, tuple[Json, str, str]] = field(default_factory=dict)  # name: schema, pointer, base


class Document:
    """A schema and what its references can reach: itself, the resources embedded in it, the standard metaschemas.

    draft: 4, 6, 7, 2019 or 2020. declared: whether `$schema` says so (else 2020 is assumed, and spellings of older
    drafts are taken where they mean one thing only). dynamic: how often each name is a `$dynamicAnchor`, and "" for
    `$recursiveAnchor`.
    """

    def __init__(self, root: Json) -> None:
        self.root = root
        named = root.get("$schema") if isinstance(root, dict) else None
        self.draft, self.declared = _draft(named)
        self._resources: dict[str, _Resource] = {}
        self.dynamic: Counter[str] = Counter()
        self.base = self._add("", root, "", self.draft)

    def resolve(self, reference: str, base: str, keyword: str, pointer: str) -> ReferenceTarget:
        """Where `reference`, found at `pointer`, leads.

        Raises ConstraintError where that is nothing, and Elsewhere for what would have to be fetched.
        """
        uri, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        resource = self._resources.get(uri) or self._metaschema(uri)
        if resource is None:
            known = "only references inside the schema and to the standard metaschemas are followed"
            raise Elsewhere(f"it leads to {reference[:200]}, elsewhere; {known}")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in resource.anchors:
                refuse(keyword, pointer, f"{reference} leads nowhere: there is no anchor of that name")
            schema, where, inner = resource.anchors[fragment]
            return ReferenceTarget(schema, where, inner, resource.draft)
        return self._walk(resource, uri, fragment, reference, keyword, pointer)

    def _walk(
        self, resource: _Resource, uri: str, path: str, reference: str, keyword: str, pointer: str
    ) -> ReferenceTarget:
        schema, base, where = resource.schema, uri, resource.pointer
        for part in path.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            where += "/" + escape(part)
            if isinstance(schema, dict) and part in schema:
                schema = schema[part]
            elif isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
                schema = schema[int(part)]
            else:
                refuse(keyword, pointer, f"{reference} leads nowhere: there is nothing at {where}")
            base = base_inside(schema, base, resource.draft)
        if not isinstance(schema, dict | bool):
            refuse(keyword, pointer, f"{reference} leads to something that is not a schema")
        return ReferenceTarget(schema, where, base, resource.draft)

    def _metaschema(self, uri: str) -> _Resource | None:
        from jsonschema_specifications import REGISTRY

        for known in (uri, uri + "#"):
            if uri and known in REGISTRY:
                schema = REGISTRY.contents(known)
                self._add(uri, schema, uri, _draft(known)[0])
                return self._resources[uri]
        return None

    def _add(self, uri: str, root: Json, pointer: str, draft: int) -> str:
        """Note a resource, those embedded in it, and their anchors; the resource's URI."""
        base = base_inside(root, uri, draft)
        resource = self._resources[base] = _Resource(root, pointer, draft)
        self._resources.setdefault(uri, resource)
        for schema, where, inner in _schemas(root, pointer, base, draft):
            if inner not in self._resources:
                self._resources[inner] = _Resource(schema, where, draft)
            self.dynamic[str(schema.get("$dynamicAnchor", "-"))] += not uri.startswith("https://json-schema.org/")
            self.dynamic[""] += schema.get("$recursiveAnchor") is True
            for name in _anchors(schema, draft):
                self._resources[inner].anchors.setdefault(name, (schema, where, inner))
        return base


def _draft(named: Json) -> tuple[int, bool]:
    """The draft that `$schema` names, and whether it names one that is known."""
    if named is None:
        return 2020, False
    if isinstance(named, str):
        if "draft-03" in named or "draft-02" in named or "draft-01" in named:
            refuse("$schema", "", f"{named} is too old; draft 4 and later are supported")
        for name, draft in _DRAFTS.items():
            if name in named:
                return draft, True
    return 2020, False


def _own_id(schema: Json, draft: int) -> str:
    """The URI that a schema gives itself; fragments are anchors instead."""
    if not isinstance(schema, dict) or (draft <= 7 and "$ref" in schema):
        return ""
    named = schema.get("id") if draft == 4 else schema.get("$id")
    return named if isinstance(named, str) and not named.startswith("#") else ""


def base_inside(schema: Json, base: str, draft: int) -> str:
    """The URI against which references inside a schema are resolved, given that of what is around it."""
    own = _own_id(schema, draft)
    return urldefrag(urljoin(base, own))[0] if own else base


def _anchors(schema: dict[str, Json], draft: int) -> Iterator[str]:
    for keyword in ("$anchor", "$dynamicAnchor"):
        if isinstance(schema.get(keyword), str):
            yield schema[keyword]
    old = schema.get("id" if draft == 4 else "$id")
    if isinstance(old, str) and old.startswith("#") and len(old) > 1:
        yield old[1:]


def _schemas(root: Json, pointer: str, base: str, draft: int) -> Iterator[tuple[dict[str, Json], str, str]]:
    """Every schema object in places where keywords put schemas, with pointer and base URI."""
    todo = [(root, pointer, base, True)]
    while todo:
        schema, where, uri, is_root = todo.pop()
        if not isinstance(schema, dict):
            continue
        if not is_root:
            uri = base_inside(schema, uri, draft)
        yield schema, where, uri
        for keyword, value in schema.items():
            at = f"{where}/{escape(keyword)}"
            if keyword in _ONE or (keyword == "items" and isinstance(value, dict)):
                todo.append((value, at, uri, False))
            elif (keyword in _LISTS or keyword == "items") and isinstance(value, list):
                todo += [(each, f"{at}/{i}", uri, False) for i, each in enumerate(value)]
            elif keyword in _MAPS and isinstance(value, dict):
                todo += [(each, f"{at}/{escape(name)}", uri, False) for name, each in value.items()]
