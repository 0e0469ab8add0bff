"""Keeps text supplied by users from becoming control tokens while a template works on it.

Characters at which a control token could come about are replaced by private placeholders, one per character, before
the template sees the text, and put back once the rendered text has been split at its control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

PRIVATE = range(0x10F000, 0x10FFFE)  # Supplementary Private Use Area-B: characters without a meaning of their own
_CHOSEN_WORDS = ("role", "type")  # keys whose values templates compare, and some build control tokens from


class ControlText:
    """The texts of a model's control tokens, and where in a user's string each of them could come about."""

    def __init__(self, texts: Collection[str]) -> None:
        firsts = "".join(sorted({re.escape(text[0]) for text in texts}))
        alternatives = "|".join(map(re.escape, sorted(texts)))
        self._whole = re.compile(f"(?=[{firsts}])(?={alternatives})" if texts else "(?!)")
        self._heads = {text[:size] for text in texts for size in range(1, len(text))}
        self._tails = {text[size:] for text in texts for size in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        self._insides = "\n".join(text[1:-1] for text in texts)
        self._edges = {text[0] for text in texts} | {text[-1] for text in texts}

    def whole(self, string: str) -> set[int]:
        """Where in `string` a control token's text starts."""
        return {match.start() for match in self._whole.finditer(string)}

    def critical(self, string: str) -> set[int]:
        """Positions such that, without them, no control token's text overlaps `string`, whatever stands around it.

        Spaces at its ends count as absent too, since templates trim.
        """
        positions = self.whole(string)
        start = len(string) - len(string.lstrip())
        end = len(string.rstrip())
        for size in range(1, self._longest):
            for left in {0, start}:
                if string[left : left + size] in self._tails:
                    positions.add(min(left + size, len(string)) - 1)
            for right in {len(string), end}:
                if size <= right and string[right - size : right] in self._heads:
                    positions.add(right - size)
        if start < end and string[start:end] in self._insides:
            positions.add(start)
        return positions

    def edges_and_critical(self, string: str) -> set[int]:
        """`critical`, and the position of every character that any control token begins or ends with."""
        return self.critical(string) | {index for index, char in enumerate(string) if char in self._edges}


class Placeholders:
    """The replacement for one rendering: private characters that occur nowhere in what is rendered."""

    def __init__(self, occurring: str) -> None:
        self._free = (chr(code) for code in PRIVATE if chr(code) not in occurring)
        self._placeholder_of: dict[str, str] = {}
        self._original_of: dict[int, str] = {}

    def fresh(self) -> str:
        """A character that stands for nothing and occurs nowhere."""
        return next(self._free)

    def hide(self, string: str, positions: set[int]) -> str:
        """`string` with the characters at `positions` replaced."""
        if not positions:
            return string
        chars = list(string)
        for position in positions:
            chars[position] = self._placeholder(chars[position])
        return "".join(chars)

    def restore(self, string: str) -> str:
        return string.translate(self._original_of)

    def tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """The filter as chat templates expect it: JSON with nothing escaped for HTML.

        A placeholder is escaped as the character that it stands for would be.
        """
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        for code, original in self._original_of.items():
            written = json.dumps(chr(code), ensure_ascii=ensure_ascii)[1:-1]
            wanted = json.dumps(original, ensure_ascii=ensure_ascii)[1:-1]
            text = text.replace(written, chr(code) if wanted == original else wanted)
        return text

    def _placeholder(self, char: str) -> str:
        if char not in self._placeholder_of:
            self._placeholder_of[char] = placeholder = self.fresh()
            self._original_of[ord(placeholder)] = char
        return self._placeholder_of[char]


def map_strings(value: Any, change: Callable[[str], str], words: Collection[str], keep: Callable[[str], bool]) -> Any:
    """A copy of JSON-like data with every string, keys too, put through `change`.

    Words by which a template finds its way stay as they are where `keep` agrees: keys that it names (`words`), and the
    values of "role" and "type" that it names.
    """

    def change_word(word: str) -> str:
        return word if word in words and keep(word) else change(word)

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, Mapping):
            return {
                change_word(key): change_word(item) if key in _CHOSEN_WORDS and isinstance(item, str) else walk(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        return value

    return walk(value)
