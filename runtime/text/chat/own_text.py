"""Strings that know which of their characters a chat template wrote itself: its source, not its data.

Joining, cutting and formatting keep that knowledge. Whatever else is done to such a string gives a plain `str`, whose
characters count as somebody else's: what cannot be followed is never taken for the template's own. Nothing here may
change a text: it is always the one that plain strings would give.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex

import markupsafe

_MARK = "\x00"
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[#0\- +]*\d*(?:\.\d*)?[hlL]?[a-zA-Z%]")


class OwnText(str):
    """A string with one byte for each of its characters: 1 where the template wrote it, else 0.

    To every comparison, test and filter it is a string like any other.
    """

    __slots__ = ("own_mask",)
    own_mask: bytes

    def __new__(cls, text: str = "", own_mask: bytes | None = None) -> OwnText:
        """Without `own_mask`, no character is the template's own."""
        made = super().__new__(cls, text)
        made.own_mask = bytes(len(text)) if own_mask is None else own_mask
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return OwnText(plain(self) * count, self.own_mask * count) if isinstance(count, int) else NotImplemented

    def __rmul__(self, count: Any) -> Any:
        return self * count

    def __mod__(self, values: Any) -> str:
        literals, conversions = _CONVERSION.split(self), _CONVERSION.findall(self)
        given = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else (values,)
        return _formatted(self, lambda text: text % values, literals, conversions, given)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            return OwnText(super().__getitem__(key), self.own_mask[key])
        index = key.__index__()
        return OwnText(super().__getitem__(index), bytes((self.own_mask[index],)))

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(super().rstrip(chars))]

    def join(self, iterable: Iterable[str], /) -> str:
        parts = list(iterable)
        return OwnText(super().join(parts), self.own_mask.join(map(_mask, parts)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        pieces = super().split(sep, maxsplit)
        if sep is None:
            return pieces
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece) + len(sep))
        return [self[start : start + len(piece)] for start, piece in zip(starts, pieces)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return super().replace(old, new, count)
        return tracked(new).join(self.split(old, count))

    def upper(self) -> str:
        return self._as_a_whole(super().upper())

    def lower(self) -> str:
        return self._as_a_whole(super().lower())

    def title(self) -> str:
        return self._as_a_whole(super().title())

    def capitalize(self) -> str:
        return self._as_a_whole(super().capitalize())

    def _as_a_whole(self, made: str) -> str:
        """`made` of this text alone, in a way that does not keep characters apart."""
        return written(made) if _is_whole(self) else made


class OwnMarkup(markupsafe.Markup):
    """What the filter `safe` makes of a string: text added to it is escaped for HTML, and all else gives `Markup`."""

    __slots__ = ("own_mask",)
    own_mask: bytes

    def __new__(cls, text: str = "", own_mask: bytes | None = None) -> OwnMarkup:
        made = super().__new__(cls, text)
        made.own_mask = bytes(len(made)) if own_mask is None else own_mask
        return made

    def __str__(self) -> str:
        return OwnText(plain(self), self.own_mask)

    def __html__(self) -> OwnMarkup:
        return self

    def __add__(self, value: Any, /) -> Any:
        added = super().__add__(value)
        return added if added is NotImplemented else OwnMarkup(added, self.own_mask + _escaped_mask(value))

    def __radd__(self, value: Any, /) -> Any:
        added = super().__radd__(value)
        return added if added is NotImplemented else OwnMarkup(added, _escaped_mask(value) + self.own_mask)


def written(text: str) -> OwnText:
    """Text that is the template's own from end to end."""
    return OwnText(text, b"\x01" * len(text))


def tracked(text: str) -> OwnText:
    """The same text; where nothing is known about it, none of it is the template's own."""
    return text if isinstance(text, OwnText) else OwnText(text)


def plain(text: str) -> str:
    """The text alone, as Python's own `str`."""
    return str.__str__(text)


def marked_safe(value: Any) -> OwnMarkup:
    """The filter `safe`."""
    text = markupsafe.Markup(value)
    return OwnMarkup(text, _mask(value) if isinstance(value, OwnText | OwnMarkup) else None)


def concat(parts: Iterable[str]) -> OwnText:
    parts = list(parts)
    return OwnText("".join(parts), b"".join(map(_mask, parts)))


def format_own(text: OwnText, format_text: Callable[[str], str], given: Iterable[Any]) -> str:
    """`text` formatted with the values `given`; `format_text` does that for any text, in the way of `str.format`."""
    literals, fields = [""], []
    for literal, name, spec, conversion in string.Formatter().parse(plain(text)):
        literals[-1] += literal
        if name is not None:
            fields.append("{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}")
            literals.append("")
    return _formatted(text, format_text, literals, fields, given)


def _formatted(
    text: OwnText, format_text: Callable[[str], str], literals: list[str], fields: list[str], given: Iterable[Any]
) -> str:
    """`text`, which is `fields` between `literals`, formatted: what it says itself stays its own, the values do not.

    Where text and values are the template's own, so is all.
    """
    made = format_text(plain(text))
    if not _is_whole(text):
        return plain(made)
    if all(isinstance(value, OwnText) and _is_whole(value) for value in given):
        return written(made)
    values = format_text(_MARK.join(fields)).split(_MARK) if fields else []
    parts: list[str] = [written(literals[0])]
    for value, literal in zip(values, literals[1:]):
        parts += [plain(value), written(literal)]
    whole = concat(parts)
    return whole if len(values) == len(fields) and whole == made else plain(made)


def _mask(text: str) -> bytes:
    return text.own_mask if isinstance(text, OwnText | OwnMarkup) else bytes(len(text))


def _escaped_mask(value: Any) -> bytes:
    escaped = markupsafe.escape(value)
    return _mask(value) if escaped == value else bytes(len(escaped))


def _is_whole(text: OwnText) -> bool:
    return 0 not in text.own_mask
