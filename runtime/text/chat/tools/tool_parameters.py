"""The parameters of a function one by one, for formats that write arguments so: what each may be, how it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = Any

_LABELS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
_LABELS |= {"$id", "$defs", "definitions"}
_WRITTEN = _LABELS | {"type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
_WRITTEN |= {"unevaluatedProperties", "maxProperties"}  # what narrows names is kept to by writing the named ones only
_SCALARS = ("null", "boolean", "integer", "number")
_DEPTH = 20


@dataclass(frozen=True)
class ParameterKind:
    """What one parameter may be. texts: schemas of strings; others: schemas of other values, none of them a string's.

    others_types: their JSON types. Where `texts` is empty, a string is written, and read, as JSON.
    """

    schema: Schema
    texts: tuple[Schema, ...] = ()
    others: tuple[Schema, ...] = ()
    others_types: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Parameters:
    """kinds: by name, in the schema's order. beyond: keywords at the top that this way of writing cannot keep to."""

    kinds: dict[str, ParameterKind] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    beyond: tuple[str, ...] = ()


def read_parameters(schema: Mapping[str, Any] | None) -> Parameters:
    """The parameters that a function's schema (an object's) names."""
    root = schema or {}
    top = _resolved(root, root)
    if not isinstance(top, Mapping):
        return Parameters()
    properties = top.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    wanted = top.get("required")
    required = frozenset(each for each in wanted if isinstance(each, str)) if isinstance(wanted, list) else frozenset()
    named = {**properties, **dict.fromkeys(sorted(required - properties.keys()), True)}
    kinds = {name: _kind(part, root) for name, part in named.items()}
    return Parameters(kinds, required, tuple(sorted(set(top) - _WRITTEN)))


def _kind(part: Schema, root: Schema) -> ParameterKind:
    whole = _alone(part, root)
    split = _split(part, root, _DEPTH)
    if split is None:
        return ParameterKind(whole)
    texts, others = split
    types: set[str] = set()
    for each in others:
        known = _types(each)
        if known is None or "string" in known:
            return ParameterKind(whole)
        types |= known
    return ParameterKind(
        whole, tuple(texts), tuple(_alone(each, root) for each in others), frozenset(types) if texts else frozenset()
    )


def _split(part: Schema, root: Schema, depth: int) -> tuple[list[Schema], list[Schema]] | None:
    """(schemas of strings, schemas of others) that allow together what `part` does; None where that is not plain."""
    part = _resolved(part, root)
    if not isinstance(part, Mapping) or depth == 0:
        return None
    said = {key: value for key, value in part.items() if key not in _LABELS}
    values = [said["const"]] if "const" in said else said.get("enum")
    if isinstance(values, list):
        if said.keys() - {"const", "enum", "type"} or not values:
            return None
        texts = [each for each in values if isinstance(each, str)]
        others = [each for each in values if not isinstance(each, str)]
        return [{"enum": texts}] if texts else [], [{"enum": others}] if others else []
    branches = said.get("anyOf", said.get("oneOf"))
    if isinstance(branches, list):
        if len(said) > 1:
            return None
        split = [_split(each, root, depth - 1) for each in branches]
        if any(each is None for each in split):
            return None
        both = [[one for each in split if each for one in each[i]] for i in (0, 1)]
        if "oneOf" in said and len(both[0]) > 1:  # exactly one of several has to fit
            return None
        return both[0], both[1]
    kinds = said.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not kinds:
        return None
    rest = [each for each in kinds if each != "string"]
    texts = [{**said, "type": "string"}] if "string" in kinds else []
    if texts and rest:  # keywords about one type do not matter to the others
        about_text = {"pattern", "format", "minLength", "maxLength"}
        texts = [{key: value for key, value in texts[0].items() if key in about_text | {"type"}}]
        said = {key: value for key, value in said.items() if key not in about_text}
    return texts, [{**said, "type": rest if len(rest) > 1 else rest[0]}] if rest else []


def _types(schema: Schema) -> set[str] | None:
    """The JSON types of what a schema allows, where it says so itself."""
    if not isinstance(schema, Mapping):
        return None
    if "enum" in schema:
        names = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}
        return {names.get(type(each), "string") for each in schema["enum"]}
    kinds = schema.get("type")
    return set(kinds) if isinstance(kinds, list) else {kinds} if isinstance(kinds, str) else None


def reading(kind: ParameterKind, *, quoted: bool, tells_apart: bool) -> str:
    """How a value is written and read: "text" as it is, "json", or "either", which then is told from how it looks."""
    if quoted or not kind.texts or (kind.others and not tells_apart and plain_scalars(kind.others) is None):
        return "json"
    return "either" if kind.others else "text"


def plain_scalars(others: tuple[Schema, ...]) -> list[str] | None:
    """The scalar types among these schemas, if each of them is free; None where some scalar is bound by more."""
    found: list[str] = []
    for schema in others:
        kinds = _types(schema) or set()
        if kinds & set(_SCALARS):
            if set(schema) - _LABELS - {"type"} or not kinds <= set(_SCALARS):
                return None
            found += sorted(kinds)
    return sorted(set(found))


def allowed_words(kind: ParameterKind) -> frozenset[str]:
    """Which of true, false and null every schema here allows, by JSON's names."""
    schemas = [kind.schema] if not (kind.texts or kind.others) else list(kind.others)
    words: set[str] = set()
    for schema in schemas:
        if isinstance(schema, Mapping) and "enum" not in schema and "const" not in schema:
            kinds = _types(schema) or set()
            words |= {"true", "false"} if "boolean" in kinds else set()
            words |= {"null"} if "null" in kinds else set()
    return frozenset(words)


def _resolved(part: Schema, root: Schema, depth: int = _DEPTH) -> Schema:
    """What a schema that is a mere reference, or one single `allOf`, stands for."""
    while isinstance(part, Mapping) and depth:
        depth -= 1
        said = part.keys() - _LABELS
        if said == {"$ref"} and isinstance(part["$ref"], str):
            part = referred_to(part["$ref"], root)
        elif said == {"allOf"} and isinstance(part["allOf"], list) and len(part["allOf"]) == 1:
            part = part["allOf"][0]
        else:
            break
    return part


def referred_to(reference: Any, root: Any) -> Any:
    """What a reference within the schema leads to; None for any other."""
    found = root if str(reference).startswith("#") else None
    for part in str(reference).split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _alone(part: Schema, root: Schema) -> Schema:
    """A part of a schema as one of its own: where it refers to the whole, that goes along."""
    if '"$ref"' not in json.dumps(part):
        return dict(part) if isinstance(part, Mapping) else part
    moved = _moved(part)
    return {**moved, "$defs": {"parameters": _moved(root)}}


def _moved(part: Any) -> Any:
    """A schema whose references lead to where the whole one stands now."""
    if isinstance(part, list):
        return [_moved(each) for each in part]
    if not isinstance(part, Mapping):
        return part
    values = ("enum", "const", "default", "examples")
    made = {key: value if key in values else _moved(value) for key, value in part.items()}
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        made["$ref"] = "#/$defs/parameters" + reference[1:]
    return made
