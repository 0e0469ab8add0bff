"""Values as models write them where their format does not ask for JSON: like Python's, or with bare names as keys."""

from __future__ import annotations

import json
import re
from typing import Any

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DEEPEST = 100


def as_json(text: str, quote: str = "") -> str | None:
    """The JSON text of such a value; None where it is none. quote: what else strings may stand between."""
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(_Reader(text, quote).whole(), ensure_ascii=False)
    except (ValueError, IndexError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(name)


class _Reader:
    """Raises ValueError or IndexError for what is no value."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def whole(self) -> Any:
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise ValueError("more follows")
        return value

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _value(self, depth: int) -> Any:
        self._skip()
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        char = self._text[self._at]
        if self._quote and self._text.startswith(self._quote, self._at):
            return self._between(self._quote)
        if char in "\"'":
            return self._string(char)
        if char == "{":
            return dict(self._items("}", lambda: self._pair(depth + 1)))
        if char in "[(":
            return self._items("]" if char == "[" else ")", lambda: self._value(depth + 1))
        found = _NUMBER.match(self._text, self._at)
        if found:
            self._at = found.end()
            return json.loads(found[0])
        word = self._word()
        return _WORDS[word] if word in _WORDS else _missing(word)

    def _items(self, end: str, item: Any) -> list[Any]:
        self._at += 1
        made: list[Any] = []
        while True:
            self._skip()
            if self._text[self._at] == end:
                self._at += 1
                return made
            made.append(item())
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1
            elif self._text[self._at] != end:
                raise ValueError("neither a comma nor the end")

    def _pair(self, depth: int) -> tuple[str, Any]:
        char = self._text[self._at]
        is_quoted = char in "\"'" or (self._quote and self._text.startswith(self._quote, self._at))
        key = self._value(depth) if is_quoted else self._word()
        self._skip()
        if self._text[self._at] != ":":
            raise ValueError("no colon")
        self._at += 1
        return str(key), self._value(depth)

    def _word(self) -> str:
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise ValueError("no value")
        self._at = found.end()
        return found[0]

    def _between(self, quote: str) -> str:
        start = self._at + len(quote)
        end = self._text.index(quote, start)
        self._at = end + len(quote)
        return self._text[start:end]

    def _string(self, quote: str) -> str:
        """A string in JSON's or Python's quotes, with their escapes."""
        start = end = self._at + 1
        while self._text[end] != quote:
            end += 2 if self._text[end] == "\\" else 1
        self._at = end + 1
        inner = self._text[start:end]
        inner = inner.replace("\\'", "'").replace('"', '\\"') if quote == "'" else inner.replace("\\'", "'")
        inner = re.sub(r'\\\\"' if quote == "'" else r"(?!)", '\\\\"', inner)
        return json.loads(f'"{inner}"', strict=False)


def _missing(word: str) -> Any:
    raise ValueError(f"{word} is no value")
