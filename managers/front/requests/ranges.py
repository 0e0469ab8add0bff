"""Ranges of fields, checked by their declarations (`runtime.declaration`): by these, and never by a list of names."""

from __future__ import annotations

from typing import Any

import msgspec

from ....runtime.declaration import Field, declared
from ...wire.errors import InvalidRequest, Path


def check_ranges(request: msgspec.Struct, vocab_size: int) -> None:
    """Every field's value by its declaration. Raises InvalidRequest naming the first that is out of range."""
    for name, field in declared(type(request)).items():
        value: Any = getattr(request, name)
        if value is None:
            continue
        if field.token_ids:
            check_ids((name,), list(value), vocab_size)
        if field.lowest is not None:
            values = value if isinstance(value, dict) else {None: value}
            for key, each in values.items():
                _check_range((name,) if key is None else (name, str(key)), each, field)


def _check_range(path: Path, value: float, field: Field) -> None:
    """Written so that NaN fails too."""
    lowest, highest = field.lowest, field.highest
    assert lowest is not None
    assert highest is not None
    if not lowest <= value <= highest:
        shown = value if isinstance(value, float) or abs(value) < 10**20 else "a number of more than 20 digits"
        raise InvalidRequest.about(path, f"must be between {lowest} and {highest}, not {shown}.")


def check_ids(path: Path, ids: list[int], vocab_size: int) -> None:
    """Raise InvalidRequest for a token id that the model does not have."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest.about(path, f"holds token id {bad}; this model's ids are 0 to {vocab_size - 1}.")
