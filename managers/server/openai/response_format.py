"""OpenAI's `response_format` and vLLM's `structured_outputs`, made into the native fields of a constraint."""

from __future__ import annotations

from typing import Any

import msgspec

from ...wire.errors import InvalidRequest

FIELD = "response_format"
STRUCTURED = "structured_outputs"
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
    if kind == "structural_tag":  # as SGLang and vLLM have it
        return {"structural_tag": {key: value for key, value in response_format.items() if key != "type"}}
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f"{FIELD}.type is {kind!r}; allowed is {_ALLOWED}.", f"{FIELD}.type")
    if kind == "json_object" and response_format.get("schema"):  # as llama.cpp and Together have it
        _refuse_unknown(response_format, {"type", "schema"}, FIELD)
        return _schema_fields({"schema": response_format["schema"]}, FIELD)
    allowed = {"type", "json_schema"} if kind == "json_schema" else {"type", "schema"}
    if kind == "json_schema" and not isinstance(response_format.get("json_schema"), dict):
        place = f"{FIELD}.json_schema"
        raise InvalidRequest(f"{place} must be an object with the schema in it: {_SHAPE}.", place)
    _refuse_unknown(response_format, allowed, FIELD)
    if kind == "text":
        return {}
    return {"json_object": True} if kind == "json_object" else _schema_fields(response_format["json_schema"])


def structured_fields(structured: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of GenerateRequest that vLLM's object stands for. Raises InvalidRequest."""
    given = {name: value for name, value in (structured or {}).items() if value is not None}
    _refuse_unknown(given, {*_STRUCTURED_KINDS, *_STRUCTURED_ASIDE}, STRUCTURED)
    fields = {_STRUCTURED_KINDS[name]: value for name, value in given.items() if name in _STRUCTURED_KINDS}
    for name, kind in _STRUCTURED_TYPES.items():
        if name in fields and not isinstance(fields[name], kind):
            raise InvalidRequest(f"{STRUCTURED}: {name} is of the wrong type.", STRUCTURED)
    tag = fields.get("structural_tag")
    if isinstance(tag, str):
        try:
            fields["structural_tag"] = msgspec.json.decode(tag, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{STRUCTURED}.structural_tag is text that is no JSON: {error}.", STRUCTURED) from None
    if fields.get("json_object") is False:
        del fields["json_object"]
    if len(fields) != 1 and structured:
        names = ", ".join(_STRUCTURED_KINDS)
        raise InvalidRequest(f"{STRUCTURED} must hold one of {names}, not {len(fields)} of them.", STRUCTURED)
    return fields


_STRUCTURED_KINDS = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}
# as it is here anyway
_STRUCTURED_ASIDE = (
    "disable_any_whitespace",
    "disable_additional_properties",
    "disable_fallback",
)  # as it is here anyway
_STRUCTURED_TYPES: dict[str, Any] = {
    "json_schema": dict | bool | str,
    "regex": str,
    "choice": list,
    "ebnf": str,
    "json_object": bool,
    "structural_tag": dict | str,
}


def _schema_fields(named: dict[str, Any], place: str = f"{FIELD}.json_schema") -> dict[str, Any]:
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
