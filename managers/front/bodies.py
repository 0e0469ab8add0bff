"""From JSON bytes or keyword arguments to a typed struct, with errors that name the field.

It must never let a value through that the struct's types do not allow, nor one that cannot travel on as msgpack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeVar

import msgspec

from ...constrained.near_names import probably_meant
from ...runtime.declaration import declared
from ..wire.errors import InvalidRequest

S = TypeVar("S", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `(.*)`$")
_SEARCHED_BYTES = 2**20  # larger bodies that are no JSON are not searched for what to blame
_SPARE_LEVELS = 300  # of nesting: a message holds the value some levels down, and others read it deep in their stacks
_PYTHON_NAMES = {"array": "list", "object": "dict", "null": "None"}
_NAMED_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `([^`]*)`")


def decode_body(data: bytes, struct: type[S]) -> S:
    """The struct that a JSON body describes. Raises InvalidRequest, naming the field wherever one is to blame."""
    try:
        return msgspec.json.decode(data, type=struct)
    except msgspec.ValidationError as error:
        raise _named(error, struct) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(data, error) from None


def struct_from(fields: Mapping[str, Any], struct: type[S]) -> S:
    """The struct with these fields (Python values: an Engine's keyword arguments). Raises InvalidRequest."""
    try:
        return msgspec.convert(fields, struct, str_keys=True)
    except msgspec.ValidationError as error:
        named = _named(error, struct)
        raise InvalidRequest(_in_python(str(named)), named.field) from None
    except RecursionError:
        raise InvalidRequest("The request is nested too deeply.") from None


def check_encodable(value: Any) -> None:
    """Raise InvalidRequest, naming the field, where `value` (dicts, lists and plain values) cannot travel on."""
    nested = reduce(lambda inner, _: [inner], range(_SPARE_LEVELS), value)
    try:
        msgspec.msgpack.encode(nested)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _first_unspeakable(value, str(error)) from None


def _named(error: msgspec.ValidationError, struct: type[msgspec.Struct]) -> InvalidRequest:
    text = str(error)
    found = _PLACE.search(text)
    place = found.group(1).removeprefix("$").removeprefix(".") if found else ""
    text = _PLACE.sub("", text)
    named = _NAMED_FIELD.match(text)
    if named is None:
        place = re.sub(r"^key` in `\$\.?", "", place)
        return InvalidRequest(f"{place or 'The body'}: {text[:1].lower()}{text[1:]}.", place or None)
    field = f"{place}.{named.group(1)}" if place else named.group(1)
    if "missing" in text:
        return InvalidRequest(f"The field {field!r} is missing.", field)
    if place:
        return InvalidRequest(f"Unknown field {field!r}.", field)
    allowed = sorted(struct.__struct_encode_fields__)
    if here := next((name for name, said in declared(struct).items() if field in said.elsewhere), None):
        return InvalidRequest(f"Unknown field {field!r}; here it is {here!r}.", field)
    if field == "sampling_params":
        beside = next((name for name in ("prompt", "messages") if name in allowed), allowed[0])
        hint = f"what it holds stands in the request itself, beside {beside!r}: max_tokens, temperature, json_schema"
        return InvalidRequest(f"Unknown field {field!r}; {hint} and so on.", field)
    if near := probably_meant(field, allowed):
        return InvalidRequest(f"Unknown field {field!r}; did you mean {near!r}?", field)
    return InvalidRequest(f"Unknown field {field!r}. Allowed are: {', '.join(allowed)}.", field)


def _in_python(text: str) -> str:
    """The complaint with Python's names of the types in the place of JSON's."""
    return re.sub(r"`[^`]*`", lambda kinds: re.sub(r"\w+", lambda k: _PYTHON_NAMES.get(k[0], k[0]), kinds[0]), text)


def _malformed(data: bytes, error: Exception) -> InvalidRequest:
    """The standard library reads NaN, Infinity and lone surrogates, so that we can say where they are."""
    if len(data) > _SEARCHED_BYTES:
        return InvalidRequest(f"The body is not valid JSON: {error}.")
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        return InvalidRequest(f"The body is not valid JSON: {error}.")
    return _first_unspeakable(value, str(error))


def _first_unspeakable(value: Any, reason: str) -> InvalidRequest:
    place, what = _search(value, "") or ("", "")
    if not what:
        return InvalidRequest(f"The body cannot be read: {reason}.")
    return InvalidRequest(f"{place or 'The body'} {what}.", place or None)


def _search(value: Any, place: str, depth: int = 0) -> tuple[str, str] | None:
    """(place, complaint) of the first value that JSON or msgpack cannot hold."""
    if depth > 200:
        return place, "is nested too deeply"
    if isinstance(value, Mapping):
        items = [(f"{place}.{key}" if place else str(key), each) for key, each in value.items()]
        odd = next((key for key in value if not isinstance(key, str | int) or _complaint(key)), None)
        if odd is not None:
            return place, f"has the key {odd!r}, which is not valid text"
    elif isinstance(value, list | tuple):
        items = [(f"{place}[{i}]", each) for i, each in enumerate(value)]
    else:
        complaint = _complaint(value)
        return (place, complaint) if complaint else None
    return next((found for where, each in items if (found := _search(each, where, depth + 1))), None)


def _complaint(value: Any) -> str:
    if isinstance(value, str):
        return "" if value.isascii() or not re.search("[\ud800-\udfff]", value) else "holds a lone UTF-16 surrogate"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"must be a finite number, not {value}"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "is an integer of more than 64 bits"
    return "" if value is None else f"has a value of type {type(value).__name__}, which is not plain data"
