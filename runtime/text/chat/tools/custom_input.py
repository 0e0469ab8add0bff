"""Custom tools, whose input is free text, on models that write arguments as JSON: one string parameter holds it."""

from __future__ import annotations

import json
from typing import Any

LARK = "x-lark"
"""A keyword of ours: the string has to match this Lark grammar."""


def input_schema(name: str, syntax: str, definition: str) -> dict[str, Any]:
    """The parameters of a custom tool. syntax: "text", "regex" or "lark"."""
    text: dict[str, Any] = {"type": "string"}
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
    elif syntax == "lark":
        text[LARK] = definition
    return {"type": "object", "properties": {name: text}, "required": [name], "additionalProperties": False}


class CustomInput:
    """Reads the text of an object with one string, in pieces, and gives out the string itself as it comes."""

    def __init__(self) -> None:
        self._state = "before"  # then "value", then "after"
        self._before = ""
        self._escape = ""
        self._high = ""  # the first half of a pair of escapes

    def push(self, text: str) -> str:
        """The string's characters that these make certain."""
        made = []
        for char in text:
            if self._state == "before":
                self._before += char
                if char == '"' and self._before.count('"') == 3:  # the name's two, then the value's first
                    self._state = "value"
            elif self._state == "value":
                made.append(self._take(char))
        return "".join(made)

    def _take(self, char: str) -> str:
        if self._escape:
            self._escape += char
            if self._escape[1] == "u" and len(self._escape) < 6:
                return ""
            escape, self._escape = self._escape, ""
            if escape[1] == "u" and 0xD800 <= int(escape[2:], 16) < 0xDC00:
                self._high = escape
                return ""
            high, self._high = self._high, ""
            text = json.loads(f'"{high}{escape}"')
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if char == "\\":
            self._escape = char
            return ""
        self._high = ""
        if char == '"':
            self._state = "after"
            return ""
        return char
