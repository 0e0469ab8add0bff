"""Reads arguments that a model writes one by one, and gives them out as the text of one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any, Protocol

from .loose_values import as_json
from .object_reader import SPACE
from .tool_format import LINE, FieldStyle
from .tool_parameters import ParameterKind, read_parameters, reading

Reading = Generator[None, str, Any]
_LONGEST_KEY = 200


class Characters(Protocol):
    """Where characters come from; see `call_parser.ToolCallParser`."""

    def char(self) -> Generator[None, str, str]: ...
    def sign(self) -> Generator[None, str, str]: ...
    def unread(self, char: str) -> None: ...
    def literal(self, text: str) -> Reading: ...
    def either(self, texts: list[str]) -> Generator[None, str, int]: ...


class FieldArguments:
    """The arguments of one call, up to `closing` (without its whitespace), which is not read."""

    def __init__(self, source: Characters, style: FieldStyle, schema: Any, closing: str) -> None:
        self._source = source
        self._style = style
        self._kinds = read_parameters(schema).kinds
        self._closing = closing
        self._emit: Callable[[str], None] = lambda text: None

    def read(self, opened: Callable[[], None], emit: Callable[[str], None]) -> Reading:
        """opened: to be called once this certainly is a call. emit: takes the pieces of the JSON text."""
        self._emit = emit
        opened()
        emit("{")
        seen: set[str] = set()
        while (yield from self._has_more(is_first=not seen)):
            key = yield from self._key()
            is_new = key not in seen  # of two arguments with one name, the first one counts
            if is_new:
                emit(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
            seen.add(key)
            yield from self._value(self._kinds.get(key), emit if is_new else lambda text: None)
        emit("}")

    def _has_more(self, *, is_first: bool) -> Generator[None, str, bool]:
        opening, separator = self._style.open, self._style.separator.strip()
        if opening:
            if (yield from self._source.either([opening, self._closing])) == 0:
                return True
            for char in reversed(self._closing):
                self._source.unread(char)
            return False
        char = yield from self._source.sign()
        if char == self._closing[:1]:
            self._source.unread(char)
            return False
        if not is_first and separator and char == separator[0]:
            char = yield from self._source.sign()
        self._source.unread(char)
        return True

    def _key(self) -> Generator[None, str, str]:
        key, stop = "", self._style.text.strip()[0]
        while (char := (yield from self._source.char())) != stop and len(key) < _LONGEST_KEY:
            key += char
        self._source.unread(char)
        return key.strip().strip("\"'")

    def _value(self, kind: ParameterKind | None, emit: Callable[[str], None]) -> Reading:
        style = self._style
        how = "" if kind is None else reading(kind, quoted=style.quoted, tells_apart=style.tells_apart)
        if style.tells_apart:
            how = "text" if (yield from self._source.either([style.text, style.json])) == 0 else "json"
        else:
            yield from self._source.literal(style.text)
        mark = _core(style.text_close if how == "text" else style.json_close)
        if how == "text":
            yield from self._text(mark, emit)
            return
        text = yield from (self._marked_value(mark) if mark else self._loose_value())
        emit(self._as_json(text, how, kind))

    def _text(self, mark: str, emit: Callable[[str], None]) -> Reading:
        """A string that stands as it is, given out as it comes."""
        emit('"')
        held, ending = "", ("\n" + mark if self._style.text_close.startswith("\n") else mark)
        is_start = self._style.text.endswith("\n")
        while True:
            char = yield from self._source.char()
            if is_start and char == "\n":
                is_start = False
                continue
            is_start = False
            if not held and char not in (mark[0], ending[0]):  # as nearly always
                emit(_escaped(char))
                continue
            held += char
            if held.endswith(mark):
                text = held[: -len(mark)]
                emit(_escaped(text.removesuffix("\n") if ending != mark else text) + '"')
                return
            kept = max(_overlap(held, ending), _overlap(held, mark))
            emit(_escaped(held[: len(held) - kept]))
            held = held[len(held) - kept :]

    def _marked_value(self, mark: str) -> Generator[None, str, str]:
        """Another value, up to its mark. A mark within a JSON string is part of that."""
        text, first, in_string, escaped = "", "", False, False
        while not (text.endswith(mark) and not in_string):
            char = yield from self._source.char()
            text += char
            first = first or char.strip()
            if escaped:
                escaped = False
            elif in_string and char == "\\":
                escaped = True
            elif first in ("{", "[", '"') and char == '"':
                in_string = not in_string
        text = text[: -len(mark)]
        return text.removeprefix("\n").removesuffix("\n") if self._style.text.endswith("\n") else text

    def _loose_value(self) -> Generator[None, str, str]:
        """A value that ends where a separator or the closing stands outside of its brackets and strings."""
        text, depth, quote, escaped = "", 0, "", False
        own = "" if self._style.quoted else self._style.end  # what else than quotes strings may stand between
        ends = {self._style.separator.strip()[:1], self._closing[:1]} - {""}
        while True:
            char = yield from self._source.char()
            if depth == 0 and not quote and char in ends:
                self._source.unread(char)
                return text
            text += char
            if quote:
                is_end = text.endswith(quote) and not escaped
                escaped = char == "\\" and not escaped and quote != own
                quote = "" if is_end else quote
            elif char in "\"'" and not (own and own.startswith(text[-1 - own.find(char) :])):
                quote = char
            elif own and text.endswith(own):
                quote = own
            else:
                depth += (char in "[{(") - (char in "]})")

    def _as_json(self, text: str, how: str, kind: ParameterKind | None) -> str:
        value = text if how == "either" else text.strip(SPACE)
        written = as_json(value.strip(SPACE), self._style.end if not self._style.quoted else "")
        if how == "either" and kind is not None:
            fits = written is not None and value == value.strip(SPACE) and _type(written) in _wider(kind.others_types)
            return written if fits and written is not None else json.dumps(value, ensure_ascii=False)
        return json.dumps(text, ensure_ascii=False) if written is None else written


def _type(written: str) -> str:
    """The JSON type of a value by how it begins."""
    names = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    first = written[:1]
    return names.get(first) or ("integer" if written.lstrip("-").isdigit() else "number")


def _wider(types: frozenset[str]) -> frozenset[str]:
    return types | {"integer"} if "number" in types else types


def _core(mark: str) -> str:
    return mark.replace(LINE, "").strip()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a beginning of `mark`."""
    return next((size for size in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:size])), 0)
