"""Writes a document the way a grammar would: compact, and its properties in the order in which the grammar lets them
come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from .normal import Normal
from .validation import Validation, matcher

Json = Any


class Order:
    """The order of properties in documents of one schema: as `properties` lists them, then `required`, then all
    others.
    """

    def __init__(self, normal: Normal) -> None:
        self._normal = normal
        self._validation = Validation(normal.schema, normal.draft)

    def texts(self, document: Json) -> list[str]:
        """The document; where 1.0 is an integer (from draft 6 on), also with whole numbers written as such."""
        variants = [document] if self._normal.draft == 4 else [document, _whole(document)]
        return [self._text([self._normal.schema], variant) for variant in variants]

    def _text(self, parts: list[Json], value: Json) -> str:
        if isinstance(value, dict):
            views = list(self._views(parts, value))
            pairs = (
                f"{_scalar(name)}:{self._text(_below(views, name), value[name])}" for name in _sorted(views, value)
            )
            return f"{{{','.join(pairs)}}}"
        if isinstance(value, list):
            views = list(self._views(parts, value))
            return f"[{','.join(self._text(_items(views, i), each) for i, each in enumerate(value))}]"
        return _scalar(value).replace("\x7f", "\\u007f")  # as the engine writes it

    def _views(self, parts: list[Json], value: Json) -> Iterator[dict[str, Json]]:
        """The schema objects that apply to this value, in the order in which the grammar merges them."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            own: dict[str, Json] = {}
            for keyword, content in part.items():
                if keyword in ("$ref", "allOf", "anyOf", "oneOf"):
                    if own:
                        yield own
                        own = {}
                    yield from self._views(self._applying(part, keyword, value), value)
                else:
                    own[keyword] = content
            if own:
                yield own
            for keyword in ("dependentSchemas", "then", "else"):
                if keyword in part:
                    yield from self._views(self._applying(part, keyword, value), value)

    def _applying(self, part: dict[str, Json], keyword: str, value: Json) -> list[Json]:
        content = part[keyword]
        match keyword:
            case "$ref":
                return [self._normal.deref(part)]
            case "anyOf" | "oneOf":
                return [branch for branch in content if self._validation.is_valid(branch, value)]
            case "then" | "else":
                return [content] if self._validation.is_valid(part["if"], value) == (keyword == "then") else []
            case "dependentSchemas":
                there = {name: each for name, each in content.items() if isinstance(value, dict) and name in value}
                return [part for name, each in there.items() for part in ({"dependentRequired": {name: []}}, each)]
        return content


def _sorted(views: list[dict[str, Json]], value: dict[str, Json]) -> list[str]:
    """The names of an object's properties in the grammar's order; an order that an enum gives goes before all."""
    listed = [each for view in views for each in [*view.get("enum", []), view.get("const")] if each == value]
    if listed:
        return list(listed[0])
    known = [name for view in views for name in view.get("properties", {})]
    known += [name for view in views for name in view.get("required", [])]
    for name, needed in (
        (name, needed) for view in views for name, needed in view.get("dependentRequired", {}).items()
    ):
        known += [name, *needed]
    ranks = {name: rank for rank, name in reversed(list(enumerate(known)))}
    patterns = [pattern for view in views for pattern in view.get("patternProperties", {})]

    def rank(name: str) -> tuple[int, int]:
        if name in ranks:
            return 0, ranks[name]
        return (1, 0) if any(matcher(pattern)(name) for pattern in patterns) else (2, 0)

    return sorted(value, key=rank)


def _below(views: list[dict[str, Json]], name: str) -> list[Json]:
    found = []
    for view in views:
        if name in view.get("properties", {}):
            found.append(view["properties"][name])
        matching = [part for pattern, part in view.get("patternProperties", {}).items() if matcher(pattern)(name)]
        found += matching
        if not matching and name not in view.get("properties", {}):
            found.append(view.get("additionalProperties"))
    return found


def _items(views: list[dict[str, Json]], index: int) -> list[Json]:
    return [
        view["prefixItems"][index] if index < len(view.get("prefixItems", [])) else view.get("items") for view in views
    ]


def _scalar(value: Json) -> str:
    """Numbers are written without an exponent, and still read as the same ones."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, float) or "e" not in text:
        return text
    plain = format(Decimal(text), "f")
    return plain if "." in plain else plain + ".0"


def _whole(value: Json) -> Json:
    """The same document with 1.0 written as 1."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value == int(value) else value
