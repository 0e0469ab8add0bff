"""The options of a generation, checked as far as their types go; their ranges are the backend's to check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...managers.front.requests.request_fields import CompletionFields
from ...runtime.declaration import plain_types
from ..errors import ProgramMisuse
from ..ir import GenOptions

_NUMBERS: dict[Any, tuple[type | tuple[type, ...], str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}


def gen_options(**options: Any) -> GenOptions:
    """The options, with their lists as tuples. Raises ProgramMisuse for a value of the wrong type."""
    stop, ids = options.get("stop"), options.get("stop_token_ids")
    if stop is not None:
        options["stop"] = stop_texts(stop)
    if ids is not None:
        options["stop_token_ids"] = _tuple("stop_token_ids", ids, int, "a list of token ids")
    for name, kind in plain_types(CompletionFields).items():
        value = options.get(name)
        if kind not in _NUMBERS or value is None:
            continue
        kinds, what = _NUMBERS[kind]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ProgramMisuse(f"{name} must be {what}, not {value!r}.")
    return GenOptions(**options)


def stop_texts(stop: Any) -> tuple[str, ...]:
    """One stop string, or several, as a tuple. Raises ProgramMisuse for what is neither."""
    return (stop,) if isinstance(stop, str) else _tuple("stop", stop, str, "a text or a list of texts")


def _tuple(name: str, values: Any, kind: type, what: str) -> tuple[Any, ...]:
    """The values, all of which must be of this kind."""
    found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else (None,)
    if not all(isinstance(each, kind) for each in found):
        raise ProgramMisuse(f"{name} must be {what}, not {values!r}.")
    return found
