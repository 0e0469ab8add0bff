"""Enforces what no grammar expresses: a value is validated the moment it closes, while it can still be taken back.

Only parts of a schema that apply to a value for certain are looked at where it stands; what stands under anyOf and the like
is checked with the nearest value around it to which a part applies for certain.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from .check_places import Places
from .json_scan import Closed, Scanner, Value

Json = Any


class Checker:
    """The checks of one completion.

    reason: why the last push or finish failed: keyword and JSON pointer into the schema, then what is wrong.
    """

    def __init__(self, checks: str) -> None:
        """checks: as in `Compiled.checks`; with "" everything passes."""
        self.reason = ""
        self._places = _compiled(checks) if checks else None
        self._data = bytearray()
        self._scanner = Scanner()
        self._root = self._places.root if self._places else ()
        self._history: list[tuple[int, Scanner]] = [(0, self._scanner)]

    def push(self, data: bytes) -> bool:
        """Take more bytes of the completion. False: a value that closed in them is wrong, and they are not taken."""
        if self._places is None or not data:
            return True
        length = len(self._data)
        self._data += data
        scanner = self._run(self._scanner, length)
        if scanner is None:
            del self._data[length:]
            return False
        self._scanner = scanner
        self._history.append((len(self._data), scanner))
        return True

    def finish(self) -> bool:
        """Nothing follows. False: the value that ends here, a number, is wrong."""
        if self._places is None:
            return True
        closed = self._scanner.end(len(self._data))
        return closed is None or self._is_right(closed, self._scanner) is not None

    @property
    def held_from(self) -> int | None:
        """Where in the completion the outermost open value begins that is yet to be checked; None: all is final."""
        return self._scanner.held if self._places is not None else None

    def truncate(self, length: int) -> None:
        """Go back to the completion's first `length` bytes."""
        if self._places is None or length >= len(self._data):
            return
        while self._history[-1][0] > length:
            self._history.pop()
        known, self._scanner = self._history[-1]
        rest = bytes(self._data[known:length])
        del self._data[known:]
        if rest:
            self.push(rest)

    def _run(self, scanner: Scanner, at: int) -> Scanner | None:
        """The scanner after the data from `at` on; None where a value is wrong."""
        end = len(self._data)
        while at < end:
            at, scanner, closed = scanner.step(self._data, at, self._begin)
            if closed is not None:
                seen = self._is_right(closed, scanner)
                if seen is None:
                    return None
                scanner = scanner.noted(seen)
        return scanner

    def _begin(self, scanner: Scanner) -> Value:
        """What applies to the value that begins where the scanner stands."""
        assert self._places is not None
        frame = scanner.frame
        if frame is None:
            places = self._root
        elif frame.key is not None:
            places = self._places.of_property(frame.places, frame.key)
        else:
            places = self._places.of_item(frame.places, frame.index)
        is_item = frame is not None and frame.key is None
        unique = is_item and any(place.unique for place in frame.places)
        return Value(places, unique or any(place.check for place in places), unique)

    def _is_right(self, closed: Closed, scanner: Scanner) -> str | None:
        """None where a closed value or property name is wrong; else what later items must not be equal to, or ""."""
        if not closed.checked or self._places is None:
            return ""
        value = json.loads(self._data[closed.start : closed.end])
        for place in closed.places:
            problem = self._places.name_problem(place, value) if closed.is_name else self._places.problem(place, value)
            if problem:
                self.reason = problem
                return None
        if not closed.unique:
            return ""
        key = json.dumps(_comparable(value), sort_keys=True)
        if key in closed.seen:
            owner = next(place for place in scanner.frame.places if place.unique) if scanner.frame else None
            where = f"{owner.pointer}/uniqueItems" if owner else "/uniqueItems"
            self.reason = f"uniqueItems at {where}: an item is there twice: {key[:100]}"
            return None
        return key


def _comparable(value: Json) -> Json:
    """Equal for values that JSON Schema calls equal: 1.0 and 1 are."""
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return value


@lru_cache(maxsize=64)
def _compiled(checks: str) -> Places:
    return Places(json.loads(checks))
