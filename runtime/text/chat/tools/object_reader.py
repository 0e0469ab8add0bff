"""Follows the JSON object that is one call, or the value that its arguments are, character by character."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

SPACE = " \t\r\n"
_LONGEST_KEY = 64


class ObjectReader:
    """Follows the JSON object of one call, character by character.

    known: it certainly is a call, of `name`; reported: its reader was told. ended: the object is complete.
    failed: it is no call, or no JSON.
    """

    def __init__(
        self, names: Collection[str], *, marked: bool, name_keys: Sequence[str], argument_keys: Sequence[str]
    ) -> None:
        """marked: the object stands within a mark; else its `{` was read, and only its start tells what it is.

        name_keys, argument_keys: what the keys of the name and the arguments may be called.
        """
        self._names = names
        self._marked = marked
        self._name_keys = name_keys
        self._argument_keys = argument_keys
        self._first_key = "" if marked else name_keys[0]
        self._expect = "object" if marked else "key or end"
        self._key = ""
        self._text = ""  # of the string or value that is being read
        self._value: JsonValue | None = None
        self._early = ""  # arguments that came before the name
        self._has_arguments = False
        self.name = ""
        self.known = self.reported = self.ended = self.failed = False

    def take(self, char: str) -> str:
        """Read on; returns what is new of the arguments. To be called until `ended` or `failed`."""
        if self._value is not None:
            return self._take_value(self._value, char)
        if self._expect == "rest of key":
            self._take_key(char)
        elif char not in SPACE:
            return self._take_sign(char)
        return ""

    def _take_sign(self, char: str) -> str:
        """A character between the keys and the values."""
        match self._expect, char:
            case "object", "{":
                self._expect = "key or end"
            case "key or end" | "key", '"':
                self._expect, self._text = "rest of key", ""
            case "colon", ":":
                self._expect = "value"
            case "value", _:
                self._begin_value(char)
                return self._take_value(self._value, char) if self._value is not None else ""
            case "comma or end", ",":
                self._expect = "key"
            case "key or end" | "comma or end", "}":
                return self._end()
            case _:
                self.failed = True
        return ""

    def _take_key(self, char: str) -> None:
        if char != '"':
            self._text += char
            self.failed = len(self._text) > _LONGEST_KEY or bool(
                self._first_key and not self._first_key.startswith(self._text)
            )
            return
        self._key, self._expect = self._text, "colon"
        self.failed = bool(self._first_key) and self._key != self._first_key
        self._first_key = ""

    def _begin_value(self, char: str) -> None:
        is_name, is_arguments = self._key in self._name_keys, self._key in self._argument_keys
        wanted = '"' if is_name else '{"' if is_arguments else ""
        repeated = (is_name and self.name) or (is_arguments and self._has_arguments)
        if repeated or (wanted and char not in wanted) or char in "}],:":
            self.failed = True
            return
        self._value, self._text = JsonValue(), ""
        if self._key in self._argument_keys:
            self._has_arguments = True
            self.known = bool(self.name)

    def _take_value(self, value: JsonValue, char: str) -> str:
        belongs = value.take(char)
        is_object = value.kind == "{"
        new = char if belongs and self._key in self._argument_keys and is_object else ""
        if belongs and not new:
            self._text += char
        if value.ended:
            self._value, self._expect = None, "comma or end"
            new += self._end_value(value)
        elif self._key in self._name_keys:
            self.failed = not any(json.dumps(name).startswith(self._text) for name in self._names)
        if not belongs:
            new += self.take(char)
        if not self.known:
            self._early += new
            return ""
        early, self._early = self._early, ""
        return early + new

    def _end_value(self, value: JsonValue) -> str:
        """The value is complete; returns arguments that were written as a string."""
        if self._key in self._name_keys:
            self.name = str(_loaded(self._text) or "")
            self.failed = self.name not in self._names
            self.known = self._has_arguments and not self.failed
        elif self._key in self._argument_keys and value.kind == '"':
            return str(_loaded(self._text) or "")
        return ""

    def _end(self) -> str:
        self.ended = bool(self.name) and (self._has_arguments or self._marked)
        self.failed = not self.ended
        if not self.ended or self._has_arguments:
            return ""
        self.known = True
        return "{}"


class JsonValue:
    """Follows one JSON value to its end. kind: its first character."""

    def __init__(self) -> None:
        self.kind = ""
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, char: str) -> bool:
        """Whether the character belongs to the value; `ended` once nothing more can."""
        self.kind = self.kind or char
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                self.ended = self._depth == 0
            return True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]" and self._depth:
            self._depth -= 1
            self.ended = self._depth == 0
        elif self._depth == 0 and char in "}]," + SPACE:
            self.ended = True
            return False
        return True


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
