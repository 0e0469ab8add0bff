"""Tool calls in a completion's text as it comes: the text before them, and each call's name and arguments.

How the text is cut into pieces makes no difference, and what was given out is never taken back. Text that looks like a
call and is none (not as the format has it, or no function of the request's) stays text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from .field_arguments import FieldArguments
from .object_reader import SPACE, JsonValue, ObjectReader
from .tool_format import ARGUMENTS, ID, LINE, NAME, ToolFormat

_SEPARATORS = SPACE + ";,"  # between calls that have no mark of their own
_PLACES = re.compile(f"([{NAME}{ID}{ARGUMENTS}])")
_WORD = re.compile(r"[A-Za-z0-9_.-]")

Reading = Generator[None, str, Any]
"""Reads on, character by character."""


@dataclass(frozen=True)
class CallPiece:
    """New of the call with this number: its name once, at first, then pieces of its arguments as JSON text.

    id: with the name, where the model wrote one before it.
    """

    index: int
    arguments: str
    name: str = ""
    id: str = ""


class Parsed(NamedTuple):
    """What some characters make certain: text, pieces of calls, and what is neither but thinking."""

    text: str
    calls: list[CallPiece]
    reasoning: str = ""


class NoCall(Exception):
    """What was read is no call after all."""


class ToolCallParser:
    """Reads one completion: text, then calls. Whitespace beside a call is dropped.

    over: other text follows a call. There a turn ends; what models go on to write is no part of it, and is not read.
    Where calls are JSON objects in a mark, it may hold one or a list of them, with any whitespace and the keys in any
    order; elsewhere whitespace between the marks may be other than the format's.
    """

    def __init__(self, style: ToolFormat, functions: Mapping[str, Any] | Collection[str]) -> None:
        """functions: the names of those that can be called, best with their parameters' schemas."""
        self._style = style
        self._functions = functions if isinstance(functions, Mapping) else dict.fromkeys(functions)
        self._triggers = ["{" if trigger.startswith("{") else trigger for trigger in style.triggers if trigger]
        self._text: list[str] = []
        self._pieces: list[CallPiece] = []
        self._held = ""  # text that may become part of a call, or of the whitespace beside it
        self._back: list[str] = []  # characters to be read again, the last one first
        self._reader: Reading | None = None
        self._known = False  # whether what is being read certainly is a call
        self._count = 0
        self.over = False

    @property
    def called(self) -> bool:
        """Whether there was a call, and none is unfinished."""
        return self._count > 0 and not self._known

    def push(self, text: str) -> Parsed:
        """What these next characters make certain."""
        while text and not self.over:
            text = self._read_text(text) if self._reader is None else self._feed(self._reader, text)
        made = Parsed("".join(self._text), self._pieces)
        self._text, self._pieces = [], []
        return made

    def flush(self) -> Parsed:
        """At the end of the completion: what was held back."""
        unread, self._held = self._held, ""
        return Parsed("" if self._count or self._known else unread, [])

    # --- text -------------------------------------------------------------------------------------------------------

    def _read_text(self, text: str) -> str:
        """Pass on what is certainly text, up to the beginning of a call; returns what is left to read."""
        text = self._held + text
        found = [(at, -len(trigger), trigger) for trigger in self._triggers if (at := text.find(trigger)) >= 0]
        at, _, trigger = min(found) if found else (len(text), 0, "")
        start = min([at, *(_possible_start(text, each) for each in self._triggers)])
        if start < at:  # a longer trigger may begin before this one
            at, trigger = start, ""
        certain = text[:at].rstrip(self._separators)
        if certain:
            self._say(certain)
        if not trigger:
            self._held = text[len(certain) :]
            return ""
        self._held = text[len(certain) : at + len(trigger)]
        self._reader = self._calls(trigger)
        next(self._reader)
        return text[at + len(trigger) :]

    @property
    def _separators(self) -> str:
        """What may stand before a call without being text."""
        return _SEPARATORS if self._count and not self._style.marked else SPACE

    def _say(self, text: str) -> None:
        if self._count:
            self.over = True
        else:
            self._text.append(text)

    # --- calls ------------------------------------------------------------------------------------------------------

    def _feed(self, reader: Reading, text: str) -> str:
        for i, char in enumerate(text):
            if not self._known:
                self._held += char
            try:
                reader.send(char)
            except StopIteration:
                self._reader, self._held = None, ""
                return self._unread() + text[i + 1 :]
            except NoCall:
                return self._give_back(text[i + 1 :])
        return ""

    def _unread(self) -> str:
        back, self._back = self._back, []
        return "".join(reversed(back))

    def _give_back(self, rest: str) -> str:
        """What was read as a call is none. Its first character is text; all after that is read again.

        Of a call that is known already nothing can be taken back; it ends where it failed.
        """
        back = self._unread()
        held, self._held = self._held, ""
        self._reader = None
        if self._known:
            self._known = False
            self._count += 1
            return back + rest
        first = len(held) - len(held.lstrip(self._separators)) + 1
        self._say(held[:first])
        return held[first:] + rest

    def _calls(self, trigger: str) -> Reading:
        """From the end of a trigger to the end of the calls that stand together."""
        if self._style.is_object:
            yield from self._objects(trigger)
        else:
            yield from self._marked(trigger)

    def _marked(self, trigger: str) -> Reading:
        style = self._style
        opening = next((each for each in style.opens if each.strip().startswith(trigger)), None)
        steps = _PLACES.split(style.call)
        if opening is None:
            yield from self._call([steps[0].strip()[len(trigger) :], *steps[1:]])
            return
        yield from self.literal(opening.strip()[len(trigger) :])
        yield from self._call(steps)
        more, close = _signs(style.separator + steps[0]), _signs(style.close)
        while (yield from self._more(more, close)):
            yield from self._call(["", *steps[1:]])

    def _more(self, more: str, close: str) -> Generator[None, str, bool]:
        """Whether another call follows, and not the close."""
        if more and close:
            return (yield from self.either([more, close])) == 0
        if more:
            yield from self.literal(more)
            return True
        char = yield from self.sign()
        self._back.append(char)
        if char != close[0]:
            return True
        yield from self.literal(close)
        return False

    def _call(self, steps: list[str]) -> Reading:
        """One call, whose texts and places these are by turns."""
        name = call_id = ""
        for i, step in enumerate(steps):
            if step == NAME:
                name = yield from self._word()
                if name not in self._functions:
                    self._fail()
            elif step == ID:
                call_id = yield from self._word()
            elif step == ARGUMENTS:
                called = self._style.id_form.replace(NAME, name).replace(ID, call_id) if call_id else ""
                yield from self._arguments(name, called, steps[i + 1])
            else:
                yield from self.literal(step)

    def _arguments(self, name: str, call_id: str, closing: str) -> Reading:
        if self._style.fields is not None:
            fields = FieldArguments(self, self._style.fields, self._functions[name], _signs(closing))
            yield from fields.read(lambda: self._open(name, call_id), self._add)
        else:
            char = yield from self.sign()
            if char != "{":
                self._fail(char)
            self._open(name, call_id)
            value = JsonValue()
            while True:
                value.take(char)
                self._add(char)
                if value.ended:
                    break
                char = yield from self.char()
        self._done()

    def _objects(self, trigger: str) -> Reading:
        """Calls that are JSON objects: one, several, or a list."""
        style, marked = self._style, trigger != "{"
        in_list = False
        if marked:
            char = yield from self.sign()
            in_list = char == "["
            if not in_list:
                self._back.append(char)
        while True:
            yield from self._object(marked=marked)
            if not in_list and not style.object_end:
                return
            char = yield from self.sign()
            if in_list and char == ",":
                continue
            if in_list and char == "]":
                break
            self._back.append(char)
            if in_list or char != "{":
                break
        if style.object_end:
            yield from self.literal(style.object_end)

    def _object(self, *, marked: bool) -> Reading:
        style = self._style
        reader = ObjectReader(
            self._functions.keys(), marked=marked, name_keys=style.names, argument_keys=style.arguments
        )
        while not reader.ended:
            char = yield from self.char()
            new = reader.take(char)
            if reader.known and not self._known:
                self._open(reader.name, "")
            if reader.known:
                self._add(new)
            if reader.failed:
                self._fail(char)
        self._done()

    def _open(self, name: str, call_id: str) -> None:
        self._known, self._held = True, ""
        self._pieces.append(CallPiece(self._count, "", name, call_id))

    def _add(self, arguments: str) -> None:
        """More of the arguments of the call that is being read; joined to its last piece."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.index == self._count:
            self._pieces[-1] = CallPiece(self._count, last.arguments + arguments, last.name, last.id)
        elif arguments:
            self._pieces.append(CallPiece(self._count, arguments))

    def _done(self) -> None:
        self._known, self._held = False, ""
        self._count += 1

    # --- characters ---------------------------------------------------------------------------------------------------

    def char(self) -> Generator[None, str, str]:
        """The next character."""
        return self._back.pop() if self._back else (yield)

    def sign(self) -> Generator[None, str, str]:
        """The next character that is no whitespace."""
        while (char := (yield from self.char())) in SPACE:
            pass
        return char

    def unread(self, char: str) -> None:
        self._back.append(char)

    def literal(self, text: str) -> Reading:
        """Reads past a text, whatever whitespace there is in it."""
        for wanted in _signs(text):
            char = yield from self.sign()
            if char != wanted:
                self._fail(char)

    def either(self, texts: list[str]) -> Generator[None, str, int]:
        """Reads past one of these texts (see `literal`), the longest that fits; gives its index."""
        alive = {i: _signs(text) for i, text in enumerate(texts)}
        done: int | None = None
        while True:
            char = yield from (self.char() if done is not None else self.sign())
            alive = {i: rest[1:] for i, rest in alive.items() if rest.startswith(char)}
            if not alive:
                if done is None:
                    self._fail(char)
                self._back.append(char)
                return done
            done = next((i for i, rest in alive.items() if not rest), done)
            if done is not None and len(alive) == 1 and done in alive:
                return done

    def _word(self) -> Generator[None, str, str]:
        char = yield from self.sign()
        word = ""
        while _WORD.match(char):
            word += char
            if len(word) > 200:
                self._fail(char)
            char = yield from self.char()
        self._back.append(char)
        return word

    def _fail(self, char: str = "") -> NoReturn:
        """char: read, and to be read again."""
        self._back += [char] if char else []
        raise NoCall


def _signs(text: str) -> str:
    """A text without its whitespace."""
    return "".join(char for char in text if char not in SPACE and char != LINE)


def _possible_start(text: str, trigger: str) -> int:
    """Where the longest tail of `text` that is a beginning of `trigger` starts; len(text) where there is none."""
    for size in range(min(len(trigger) - 1, len(text)), 0, -1):
        if text.endswith(trigger[:size]):
            return len(text) - size
    return len(text)
