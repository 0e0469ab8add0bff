"""Follows the structure of a JSON text as it comes, byte by byte. States are immutable, so that any of them can be gone
back to.

The text is one that a grammar allows; what is not JSON is not looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..schema.check_places import CheckPlace

Mode = Literal["value", "name", "colon", "after", "string", "name string", "scalar"]

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'[^"\\]*')
_NUMBER = re.compile(rb"[-+.eE0-9]*")
_LITERALS = {0x74: 4, 0x66: 5, 0x6E: 4, 0x54: 4, 0x46: 5, 0x4E: 4}  # lengths of true, false, null, and Python's


@dataclass(frozen=True)
class Value:
    """What is known of a value that begins. checked: it is to be checked when it closes. unique: among its siblings."""

    places: tuple[CheckPlace, ...] = ()
    checked: bool = False
    unique: bool = False


@dataclass(frozen=True)
class Frame:
    """An open object or array. key: the name before the value that comes or is open; None in arrays.

    held: where the outermost checked value begins which is open here. seen: what the items so far are equal to, or the
    names so far.
    """

    is_object: bool
    start: int
    value: Value
    parent: Frame | None
    held: int | None
    key: str | None = None
    index: int = 0
    seen: frozenset[str] = frozenset()

    @property
    def places(self) -> tuple[CheckPlace, ...]:
        return self.value.places


@dataclass(frozen=True)
class Closed:
    """A value, or a property's name, that closed: where it stands in the text, and what is known of it."""

    start: int
    end: int
    places: tuple[CheckPlace, ...]
    checked: bool
    unique: bool = False
    seen: frozenset[str] = frozenset()
    is_name: bool = False


@dataclass(frozen=True)
class Scanner:
    """One position in a text. value, start: of the string, number, literal or name that is open.

    distinct: whether no object may have two properties of one name.
    """

    mode: Mode = "value"
    frame: Frame | None = None
    value: Value = Value()
    start: int = 0
    escaped: bool = False
    distinct: bool = False

    @property
    def held(self) -> int | None:
        """Where the outermost open value begins that is to be checked."""
        if self.frame is not None and self.frame.held is not None:
            return self.frame.held
        if self.mode in ("string", "scalar", "name string") and self.value.checked:
            return self.start
        return None

    def step(self, data: bytearray, at: int, begin: Callable[[Scanner], Value]) -> tuple[int, Scanner, Closed | None]:
        """Go on from `at`; how far it went, where it stands then, and what closed on the way, if anything did.

        begin: says what is known of a value that begins where a scanner stands.
        """
        match self.mode:
            case "string" | "name string":
                return self._in_string(data, at)
            case "scalar":
                return self._in_scalar(data, at)
        at = _end(_SPACE, data, at)
        if at == len(data):
            return at, self, None
        char = data[at]
        match self.mode:
            case "colon":
                return at + 1, replace(self, mode="value"), None
            case "after" if char == 0x2C:  # ,
                return at + 1, self._next(), None
            case "after" | "value" | "name" if char in (0x5D, 0x7D):  # ] }
                return self._close(at + 1)
            case "name":
                places = self.frame.places if self.frame else ()
                value = Value(places, self.distinct or any(place.names for place in places))
                return at + 1, replace(self, mode="name string", start=at, value=value, escaped=False), None
            case "value":
                return self._open(char, at, begin(self))
        return at + 1, self, None

    def end(self, length: int) -> Closed | None:
        """What closes because the text ends at `length`: a number or literal that is the whole text."""
        if self.mode == "scalar":
            return self._closed(length)
        return None

    def noted(self, key: str) -> Scanner:
        """The same with one item more that later ones must differ from ("": with none)."""
        if not key or self.frame is None:
            return self
        return replace(self, frame=replace(self.frame, seen=self.frame.seen | {key}))

    def _open(self, char: int, at: int, value: Value) -> tuple[int, Scanner, Closed | None]:
        mode: Mode
        if char in (0x7B, 0x5B):  # { [
            held = self.frame.held if self.frame else None
            if held is None and value.checked:
                held = at
            frame = Frame(char == 0x7B, at, value, self.frame, held)
            mode = "name" if char == 0x7B else "value"
            return at + 1, Scanner(mode, frame, distinct=self.distinct), None
        mode = "string" if char == 0x22 else "scalar"
        return at + (char == 0x22), replace(self, mode=mode, value=value, start=at, escaped=False), None

    def _next(self) -> Scanner:
        frame = self.frame
        if frame is None:
            return self
        if frame.is_object:
            return replace(self, mode="name", frame=replace(frame, key=None))
        return replace(self, mode="value", frame=replace(frame, index=frame.index + 1))

    def _in_string(self, data: bytearray, at: int) -> tuple[int, Scanner, Closed | None]:
        if self.escaped:
            return at + 1, replace(self, escaped=False), None
        at = _end(_STRING, data, at)
        if at == len(data):
            return at, self, None
        if data[at] == 0x5C:  # a backslash
            return at + 1, replace(self, escaped=True), None
        closed = self._closed(at + 1)
        if self.mode == "string":
            return at + 1, replace(self, mode="after"), closed
        assert self.frame is not None
        name = json.loads(data[self.start : at + 1])
        return at + 1, replace(self, mode="colon", frame=replace(self.frame, key=name)), closed

    def _in_scalar(self, data: bytearray, at: int) -> tuple[int, Scanner, Closed | None]:
        length = _LITERALS.get(data[self.start])
        if length is None:
            at = _end(_NUMBER, data, at)
            if at == len(data):
                return at, self, None
        elif self.start + length > len(data):
            return len(data), self, None
        else:
            at = self.start + length
        return at, replace(self, mode="after"), self._closed(at)

    def _closed(self, end: int) -> Closed:
        is_name = self.mode == "name string"
        seen = self.frame.seen if self.frame else frozenset()
        return Closed(self.start, end, self.value.places, self.value.checked, self.value.unique, seen, is_name)

    def _close(self, end: int) -> tuple[int, Scanner, Closed | None]:
        """The frame's object or array ends."""
        frame = self.frame
        assert frame is not None
        outer = frame.parent
        seen = outer.seen if outer else frozenset()
        closed = Closed(frame.start, end, frame.places, frame.value.checked, frame.value.unique, seen)
        return end, Scanner("after", outer, distinct=self.distinct), closed


def _end(pattern: re.Pattern[bytes], data: bytearray, at: int) -> int:
    """Where the match of a pattern that matches anything, if only nothing, ends."""
    found = pattern.match(data, at)
    assert found is not None
    return found.end()
