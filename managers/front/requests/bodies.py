"""From JSON bytes or keyword arguments to a typed struct, with errors that name the field.

It must never let a value through that the struct's types do not allow, nor one that cannot travel on as msgpack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ....constrained.near_names import probably_meant
from ....runtime.declaration import declared
from ....runtime.sampling.params import MAX_TOKENS
from ...wire.errors import FieldError, InvalidRequest, Path
from .tolerated import Tolerated

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
F = TypeVar("F", bound=FieldError)

_PLACE = re.compile(r" - at `(?:key` in `)?\$\.?([\w.\[\]]*)`$")  # no text of the user's is in it, but before it
_SEARCHED_BYTES = 2**20  # larger bodies that are no JSON are not searched for what to blame
_NO_LIMIT = {"n_predict": (-1, -2)}  # values of other servers' fields that mean as many as the context leaves
_SAYS_NOTHING = {
    "reasoning_budget": (-1,),
    "thinking_budget_tokens": (-1,),
}  # values of other servers' fields that mean what absence means
_SPARE_LEVELS = 300  # of nesting: a message holds the value some levels down, and others read it deep in their stacks
_PYTHON_NAMES = {"array": "list", "object": "dict", "null": "None"}
_NAMED_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_KINDS = re.compile(r"Expected `([\w |]+)`, got `(\w+)`")


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


class Understood(NamedTuple, Generic[S]):
    """A body as its struct, and what else was in it. ignored: the tolerated fields that were left out. spelled: fields
    of the struct that the body calls otherwise, with the names it has for them."""

    body: S
    ignored: tuple[str, ...] = ()
    spelled: Mapping[str, str] = {}


def decode_tolerant(data: bytes, struct: type[S]) -> Understood[S]:
    """As `decode_body`, for a struct that says what it tolerates: its `tolerated`, a class variable, maps names to
    `Tolerated`. Fields that other servers call otherwise are taken under these names, too (`Field.elsewhere`). A
    method `unused` may name declared fields that were given and have no effect in this request."""
    try:
        body = msgspec.json.decode(data, type=struct)
    except msgspec.ValidationError as error:
        if not str(error).startswith("Object contains unknown field"):
            raise _named(error, struct) from None
        return _decode_others(data, struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Understood(decode_body(data, struct))
    return Understood(body, tuple(_unused(body)))


def _decode_others(data: bytes, struct: type[S]) -> Understood[S]:
    """Of a body with fields that the struct does not have."""
    tolerated: Mapping[str, Tolerated] = getattr(struct, "tolerated", {})
    try:
        given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Understood(decode_body(data, struct))
    own, others = {*struct.__struct_encode_fields__}, _spellings(struct)
    ignored: list[str] = []
    spelled: dict[str, str] = {}
    for name in [each for each in given if each not in own]:
        if name in others:
            _respell(given, name, others[name], spelled)
        elif name in tolerated:
            value = _plain(given.pop(name), name)
            tolerated[name].check(name, value)
            if value is not None:  # which means what absence means
                ignored.append(name)
    body = _renaming(spelled, lambda: decode_body(msgspec.json.encode(given), struct))
    return Understood(body, (*ignored, *_unused(body)), spelled)


def _respell(given: dict[str, msgspec.Raw], name: str, own: str, spelled: dict[str, str]) -> None:
    """Move a value to the field's own name. Raises InvalidRequest where that has another one already."""
    raw = given.pop(name)
    value = _plain(raw, name)
    if value is None or value in _SAYS_NOTHING.get(name, ()):
        return
    if value in _NO_LIMIT.get(name, ()):
        raw = msgspec.Raw(b"%d" % MAX_TOKENS)
        value = MAX_TOKENS
    if own not in given or _plain(given[own], own) is None:
        given[own] = raw
        spelled[own] = name
    elif _plain(given[own], own) != value:
        raise InvalidRequest([(spelled.get(own, own),), " and ", (name,), " are one field; give it once."], name)


def _plain(raw: msgspec.Raw, name: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest.about((name,), f"cannot be read: {error}.") from None


def _renaming(spelled: Mapping[str, str], function: Callable[[], T]) -> T:
    try:
        return function()
    except InvalidRequest as error:
        raise respelled(error, spelled) from None


def respelled(error: F, spelled: Mapping[str, str]) -> F:
    """The error with its fields under the names that the body has for them."""
    return error.renamed(lambda path: (spelled.get(str(path[0]), path[0]), *path[1:])) if spelled else error


@cache
def _spellings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The struct's own name of each field that others call otherwise."""
    own = {*struct.__struct_encode_fields__}
    return {other: name for name, said in declared(struct).items() for other in said.elsewhere if other not in own}


def _unused(body: msgspec.Struct) -> Sequence[str]:
    unused: Callable[[], Sequence[str]] | None = getattr(body, "unused", None)
    return unused() if unused is not None else ()


def struct_from(fields: Mapping[str, Any], struct: type[S], noun: str = "field") -> S:
    """The struct with these fields (Python values: an Engine's keyword arguments). Raises InvalidRequest.

    noun: what the caller calls a field.
    """
    try:
        return msgspec.convert(fields, struct, str_keys=True)
    except msgspec.ValidationError as error:
        raise _named(error, struct, noun, _PYTHON_NAMES) from None
    except RecursionError:
        raise InvalidRequest("The request is nested too deeply.") from None


def check_encodable(value: Any) -> None:
    """Raise InvalidRequest, naming the field, where `value` (dicts, lists and plain values) cannot travel on."""
    nested = reduce(lambda inner, _: [inner], range(_SPARE_LEVELS), value)
    try:
        msgspec.msgpack.encode(nested)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _first_unspeakable(value, str(error)) from None


def _named(
    error: msgspec.ValidationError, struct: type[msgspec.Struct], noun: str = "field", kinds: Mapping[str, str] = {}
) -> InvalidRequest:
    """The complaint with the field to blame. kinds: what the caller calls JSON's types."""
    text = str(error)
    found = _PLACE.search(text)
    place = found[1] if found else ""
    stripped = text[: found.start()] if found else text
    named = _NAMED_FIELD.fullmatch(stripped)
    if named is None and (named := _NAMED_FIELD.fullmatch(text)):
        place = ""  # what looked like one is part of the field's name
    if named is None:
        return InvalidRequest([(place or "The body",), f": {_complaint_of_type(stripped, kinds)}."], place or None)
    field = f"{place}.{named[1]}" if place else named[1]
    if "missing" in text[: len("Object missing")]:
        return InvalidRequest(f"The {noun} {field!r} is missing.", field)
    unknown = f"Unknown {noun} {field!r}"
    if place:
        return InvalidRequest(f"{unknown}.", field)
    allowed = sorted(struct.__struct_encode_fields__)
    if here := next((name for name, said in declared(struct).items() if field in said.elsewhere), None):
        return InvalidRequest(f"{unknown}; here it is {here!r}.", field)
    if field == "sampling_params":
        beside = next((name for name in ("prompt", "messages") if name in allowed), allowed[0])
        hint = f"what it holds stands in the request itself, beside {beside!r}: max_tokens, temperature, json_schema"
        return InvalidRequest(f"{unknown}; {hint} and so on.", field)
    if near := probably_meant(field, allowed):
        return InvalidRequest(f"{unknown}; did you mean {near!r}?", field)
    return InvalidRequest(f"{unknown}. Allowed are: {', '.join(allowed)}.", field)


def _complaint_of_type(text: str, kinds: Mapping[str, str]) -> str:
    """msgspec's sentence, with the caller's names of the types; one about a value, which it quotes, stays as it is."""
    found = _KINDS.fullmatch(text)
    if found is None:
        return f"{text[:1].lower()}{text[1:]}"
    expected = " | ".join(kinds.get(each, each) for each in found[1].split(" | "))
    return f"expected `{expected}`, got `{kinds.get(found[2], found[2])}`"


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
    path, what = _search(value, ()) or ((), "")
    if not what:
        return InvalidRequest(f"The body cannot be read: {reason}.")
    return InvalidRequest.about(path, f"{what}.") if path else InvalidRequest(f"The body {what}.")


def _search(value: Any, path: Path) -> tuple[Path, str] | None:
    """(place, complaint) of the first value that JSON or msgpack cannot hold."""
    if len(path) > 200:
        return path, "is nested too deeply"
    if isinstance(value, Mapping):
        items = [((*path, str(key)), each) for key, each in value.items()]
        odd = next((key for key in value if not isinstance(key, str | int) or _complaint(key)), None)
        if odd is not None:
            return path, f"has the key {odd!r}, which is not valid text"
    elif isinstance(value, list | tuple):
        items = [((*path, i), each) for i, each in enumerate(value)]
    else:
        complaint = _complaint(value)
        return (path, complaint) if complaint else None
    return next((found for where, each in items if (found := _search(each, where))), None)


def _complaint(value: Any) -> str:
    if isinstance(value, str):
        return "" if value.isascii() or not re.search("[\ud800-\udfff]", value) else "holds a lone UTF-16 surrogate"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"must be a finite number, not {value}"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "is an integer of more than 64 bits"
    return "" if value is None else f"has a value of type {type(value).__name__}, which is not plain data"
