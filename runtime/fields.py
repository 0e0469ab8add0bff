"""Checked access to untyped fields, as JSON and metadata have them. This module must not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ModelError, UnsupportedModel


class Fields:
    """Fields by name; `source` says in errors where they are."""

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self.data = data
        self.source = source

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._present(key, default)
        if type(value) is not int or value < 1:
            raise self.invalid(key, "a positive integer is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.invalid(key, "a positive number is needed")
        return float(value)

    def require(self, key: str, *allowed: Any) -> None:
        """Refuses a value other than `allowed`, where the key is present and not null."""
        value = self.data.get(key)
        if value is not None and not (isinstance(value, (str, int, float)) and value in allowed):
            names = " or ".join(repr(item) for item in allowed)
            raise UnsupportedModel(f"{self.source}: {key} {value!r} is not supported; only {names} is")

    def one_of(self, key: str, *allowed: Any, default: Any = None) -> Any:
        """The value, which must be among `allowed`; `default` (None: there is none) where the key is absent or null."""
        self.require(key, *allowed)
        return self._present(key, default)

    def refuse(self, key: str, why: str) -> None:
        """Refuses the key where it is present and not null, false or empty."""
        if value := self.data.get(key):
            raise UnsupportedModel(f"{self.source}: {key} {value!r} is not supported: {why}")

    def inner(self, key: str) -> Fields:
        """The fields of an object in the field `key`. Raises ModelError where it is missing or no object."""
        value = self._present(key, None)
        if not isinstance(value, dict):
            raise self.invalid(key, "an object is needed")
        return Fields(value, f"{self.source}, {key}")

    def _present(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source} lacks {key!r}")
        return value

    def invalid(self, key: str, need: str) -> ModelError:
        return ModelError(f"{self.source}: {key} is {self.data.get(key)!r}; {need}")
