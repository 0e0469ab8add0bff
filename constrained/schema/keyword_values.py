"""Reads the keywords of a schema whose values are plain: names, numbers, lists of values. No schema is inside them.

A value that the standard does not allow is refused in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable

from .document import Json, SchemaPlace, kind_of, refuse
from .normal import TYPES

MAX_VALUES = 10_000  # of one enum
MAX_COUNT = (1 << 53) - 1
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_COUNTS += ("minContains", "maxContains")


def read_number(keyword: str, value: Json, place: SchemaPlace) -> Json:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(keyword, place.at(keyword), f"it must be a number, not {kind_of(value)}")
    if keyword == "multipleOf" and value <= 0:
        refuse(keyword, place.at(keyword), "it must be above 0")
    return value


def read_names(keyword: str, value: Json, place: SchemaPlace) -> list[str]:
    """Names of properties. place: where the list stands."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(keyword, place.pointer, "it must be a list of property names")
    return list(dict.fromkeys(value))


def _count(keyword: str, value: Json, place: SchemaPlace) -> int:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    if not whole or not 0 <= value <= MAX_COUNT:
        refuse(keyword, place.at(keyword), f"it must be a whole number from 0 on, not {str(value)[:40]}")
    return int(value)


def _type(keyword: str, value: Json, place: SchemaPlace) -> Json:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or any(name not in TYPES for name in names if isinstance(name, str)):
        refuse(keyword, place.at(keyword), f"it must be one or more of {', '.join(TYPES)}")
    if not all(isinstance(name, str) for name in names):
        refuse(keyword, place.at(keyword), "it must be a name or a list of names")
    return names[0] if len(names) == 1 else list(dict.fromkeys(names))


def _enum(keyword: str, value: Json, place: SchemaPlace) -> Json:
    if not isinstance(value, list):
        refuse(keyword, place.at(keyword), f"it must be a list of values, not {kind_of(value)}")
    if len(value) > MAX_VALUES:
        refuse(keyword, place.at(keyword), f"it has {len(value)} values; at most {MAX_VALUES} are allowed")
    return value


def _const(keyword: str, value: Json, place: SchemaPlace) -> Json:
    return value


def _required(keyword: str, value: Json, place: SchemaPlace) -> list[str]:
    return read_names(keyword, value, place.under(keyword))


def _boolean(keyword: str, value: Json, place: SchemaPlace) -> bool:
    if not isinstance(value, bool):
        refuse(keyword, place.at(keyword), f"it must be true or false, not {kind_of(value)}")
    return value


PLAIN: dict[str, Callable[[str, Json, SchemaPlace], Json]] = {
    **dict.fromkeys(_COUNTS, _count),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "uniqueItems": _boolean,
}
"""What reads each keyword of a plain value that has one meaning in every draft."""
