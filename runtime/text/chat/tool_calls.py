"""Tool calls in a completion's text as it comes: the text before them, and each call's name and arguments.

How the text is cut into pieces makes no difference, and what was given out is never taken back. Text that looks like a
call and is none (no JSON object, or no function of the request's) stays text.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from .tool_formats import ToolFormat

_SPACE = " \t\r\n"
_SEPARATORS = _SPACE + ";,"  # between calls that have no mark of their own
_ARGUMENTS = ("arguments", "parameters")  # models mix the two up
_MARK_END = "</tool_call>"
_LONGEST_KEY = 64


@dataclass(frozen=True)
class CallPiece:
    """New of the call with this number: its name once, at first, then pieces of its arguments as JSON text."""

    index: int
    arguments: str
    name: str = ""


@dataclass
class _ParsedOutput:
    """What one push gives out."""

    text: list[str] = field(default_factory=list)
    pieces: list[CallPiece] = field(default_factory=list)

    def argue(self, index: int, arguments: str) -> None:
        """More of a call's arguments; joined to its last piece."""
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.index == index:
            self.pieces[-1] = CallPiece(index, last.arguments + arguments, last.name)
        elif arguments:
            self.pieces.append(CallPiece(index, arguments))


class ToolCallParser:
    """Reads one completion: text, then calls. Whitespace beside a call is dropped.

    over: other text follows a call. There a turn ends; what models go on to write is no part of it, and is not read.
    Where calls have a mark, it may hold one call or a list of them, with any whitespace and the keys in any order.
    """

    def __init__(self, style: ToolFormat, names: Collection[str]) -> None:
        """names: the functions that can be called."""
        self._marked = style.marked
        self._trigger = style.trigger if style.marked else "{"
        self._names = names
        self._held = ""  # text that may become part of a call, or of the whitespace beside it
        self._call: _CallReader | None = None
        self._closing: str | None = None  # what follows a call up to the end of its mark, so far
        self._in_list = False
        self._count = 0
        self.over = False

    @property
    def called(self) -> bool:
        """Whether there was a call, and none is unfinished."""
        return self._count > 0 and not (self._call is not None and self._call.known)

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """(text before the calls, pieces of calls) that these next characters make certain."""
        out = _ParsedOutput()
        while text and not self.over:
            if self._call is not None:
                text = self._read_call(self._call, text, out)
            elif self._closing is not None:
                text = self._read_closing(self._closing, text)
            else:
                text = self._read_text(text, out)
        return "".join(out.text), out.pieces

    def flush(self) -> tuple[str, list[CallPiece]]:
        """At the end of the completion: what was held back."""
        unread, self._held = self._held, ""
        return ("" if self._count else unread), []

    def _read_text(self, text: str, out: _ParsedOutput) -> str:
        """Pass on what is certainly text, up to the beginning of a call; returns what is left to read."""
        text = self._held + text
        start = text.find(self._trigger)
        found = start >= 0
        if not found:
            start = _possible_start(text, self._trigger)
        certain = text[:start].rstrip(self._separators)
        if certain:
            self._say(certain, out)
        if not found:
            self._held = text[len(certain) :]
            return ""
        self._held = text[len(certain) : start + len(self._trigger)]
        self._call = _CallReader(self._names, marked=self._marked)
        return text[start + len(self._trigger) :]

    def _read_call(self, call: _CallReader, text: str, out: _ParsedOutput) -> str:
        for i, char in enumerate(text):
            if self._marked and not self._in_list and char == "[" and not call.opened:
                self._in_list = True
                self._held += char
                continue
            if not call.known:
                self._held += char
            self._report(call, call.take(char), out)
            if call.failed:
                return self._give_back(call, text[i:], out)
            if call.ended:
                self._call, self._held = None, ""
                self._closing = "" if self._marked else None
                self._count += 1
                return text[i + 1 :]
        return ""

    def _report(self, call: _CallReader, arguments: str, out: _ParsedOutput) -> None:
        """What a character made known of a call."""
        if call.known and not call.reported:
            call.reported = True
            self._held = ""
            out.pieces.append(CallPiece(self._count, arguments, call.name))
        elif call.known:
            out.argue(self._count, arguments)

    def _give_back(self, call: _CallReader, rest: str, out: _ParsedOutput) -> str:
        """What was read as a call is none. Its first character is text; all after that is read again.

        Of a call that is known already nothing can be taken back; it ends where it failed.
        """
        self._call, self._in_list = None, False
        held, self._held = self._held, ""
        if call.known:
            self._count += 1
            return rest
        first = len(held) - len(held.lstrip(self._separators)) + 1
        self._say(held[:first], out)
        return held[first:] + rest[1:]

    @property
    def _separators(self) -> str:
        """What may stand before a call without being text."""
        return _SEPARATORS if self._count and not self._marked else _SPACE

    def _say(self, text: str, out: _ParsedOutput) -> None:
        if self._count:
            self.over = True
        else:
            out.text.append(text)

    def _read_closing(self, closing: str, text: str) -> str:
        """The end of the mark, or in a list the next call."""
        for i, char in enumerate(text):
            closing += char
            inner = closing.lstrip(_SPACE)
            if self._in_list and inner == ",":
                self._closing, self._held = None, closing
                self._call = _CallReader(self._names, marked=True)
                return text[i + 1 :]
            if self._in_list and inner.startswith("]"):
                inner = inner[1:].lstrip(_SPACE)
            if inner == _MARK_END or not _MARK_END.startswith(inner):
                self._closing, self._in_list = None, False
                return ("" if inner == _MARK_END else closing) + text[i + 1 :]
        self._closing = closing
        return ""


class _CallReader:
    """Follows the JSON object of one call, character by character.

    known: it certainly is a call, of `name`; reported: its reader was told. ended: the object is complete.
    failed: it is no call, or no JSON.
    """

    def __init__(self, names: Collection[str], *, marked: bool) -> None:
        """marked: the object stands within a mark; else its `{` was read, and only its start tells what it is."""
        self._names = names
        self._marked = marked
        self._first_key = "" if marked else "name"
        self._expect = "object" if marked else "key or end"
        self._key = ""
        self._text = ""  # of the string or value that is being read
        self._value: _ArgumentValue | None = None
        self._early = ""  # arguments that came before the name
        self._has_arguments = False
        self.opened = not marked
        self.name = ""
        self.known = self.reported = self.ended = self.failed = False

    def take(self, char: str) -> str:
        """Read on; returns what is new of the arguments. To be called until `ended` or `failed`."""
        if self._value is not None:
            return self._take_value(self._value, char)
        if self._expect == "rest of key":
            self._take_key(char)
        elif char not in _SPACE:
            return self._take_sign(char)
        return ""

    def _take_sign(self, char: str) -> str:
        """A character between the keys and the values."""
        match self._expect, char:
            case "object", "{":
                self._expect, self.opened = "key or end", True
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
        wanted = '"' if self._key == "name" else '{"' if self._key in _ARGUMENTS else ""
        repeated = (self._key == "name" and self.name) or (self._key in _ARGUMENTS and self._has_arguments)
        if repeated or (wanted and char not in wanted) or char in "}],:":
            self.failed = True
            return
        self._value, self._text = _ArgumentValue(), ""
        if self._key in _ARGUMENTS:
            self._has_arguments = True
            self.known = bool(self.name)

    def _take_value(self, value: _ArgumentValue, char: str) -> str:
        belongs = value.take(char)
        is_object = value.kind == "{"
        new = char if belongs and self._key in _ARGUMENTS and is_object else ""
        if belongs and not new:
            self._text += char
        if value.ended:
            self._value, self._expect = None, "comma or end"
            new += self._end_value(value)
        elif self._key == "name":
            self.failed = not any(json.dumps(name).startswith(self._text) for name in self._names)
        if not belongs:
            new += self.take(char)
        if not self.known:
            self._early += new
            return ""
        early, self._early = self._early, ""
        return early + new

    def _end_value(self, value: _ArgumentValue) -> str:
        """The value is complete; returns arguments that were written as a string."""
        if self._key == "name":
            self.name = str(_loaded(self._text) or "")
            self.failed = self.name not in self._names
            self.known = self._has_arguments and not self.failed
        elif self._key in _ARGUMENTS and value.kind == '"':
            return str(_loaded(self._text) or "")
        return ""

    def _end(self) -> str:
        self.ended = bool(self.name) and (self._has_arguments or self._marked)
        self.failed = not self.ended
        if not self.ended or self._has_arguments:
            return ""
        self.known = True
        return "{}"


class _ArgumentValue:
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
        elif self._depth == 0 and char in "}]," + _SPACE:
            self.ended = True
            return False
        return True


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _possible_start(text: str, trigger: str) -> int:
    """Where the longest tail of `text` that is a beginning of `trigger` starts; len(text) where there is none."""
    for size in range(min(len(trigger) - 1, len(text)), 0, -1):
        if text.endswith(trigger[:size]):
            return len(text) - size
    return len(text)
