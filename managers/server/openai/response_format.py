"""OpenAI's `response_format`, made into the native fields of a constraint."""

from __future__ import annotations

from typing import Any

from ...wire.errors import InvalidRequest

FIELD = "response_format"
_SHAPE = '{"type": "json_schema", "json_schema": {"name": "answer", "schema": {…}}}'
_ALLOWED = (
    '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": …, "schema": …}}'
)


def constraint_fields(response_format: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of GenerateRequest that it stands for; none for text. Raises InvalidRequest.

    The name and the description of a schema are labels without an effect. Without `strict`, or with null, a schema is
    enforced as with true.
    """
    if response_format is None:
        return {}
    kind = response_format.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f"{FIELD}.type is {kind!r}; allowed is {_ALLOWED}.", f"{FIELD}.type")
    allowed = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    if kind == "json_schema" and not isinstance(response_format.get("json_schema"), dict):
        place = f"{FIELD}.json_schema"
        raise InvalidRequest(f"{place} must be an object with the schema in it: {_SHAPE}.", place)
    _refuse_unknown(response_format, allowed, FIELD)
    if kind == "text":
        return {}
    return {"json_object": True} if kind == "json_object" else _schema_fields(response_format["json_schema"])


def _schema_fields(named: dict[str, Any]) -> dict[str, Any]:
    place = f"{FIELD}.json_schema"
    if "schema" not in named:
        raise InvalidRequest(f"{place}.schema is missing; the right shape is {_SHAPE}.", f"{place}.schema")
    _refuse_unknown(named, {"name", "description", "schema", "strict"}, place)
    for key in ("name", "description"):
        if not isinstance(named.get(key, ""), str | None):
            raise InvalidRequest(f"{place}.{key} must be text.", f"{place}.{key}")
    schema, strict = named["schema"], named.get("strict")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{place}.schema must be a JSON Schema: an object, true or false.", f"{place}.schema")
    if not isinstance(strict, bool | None):
        raise InvalidRequest(f"{place}.strict must be true or false.", f"{place}.strict")
    return {"json_schema": schema} if strict is None else {"json_schema": schema, "strict": strict}


def _refuse_unknown(value: dict[str, Any], allowed: set[str], place: str) -> None:
    for key in value:
        if key not in allowed:
            raise InvalidRequest(f"Unknown field {place}.{key}; allowed are {', '.join(sorted(allowed))}.", place)
