"""One walk over a regular expression of ECMA 262, which writes it down in the dialect of another reader.

Whoever wants a pattern translated calls `grammar.patterns`. Nothing here may guess: what dialects disagree on is
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from .pattern_classes import ANY, END, EXACT, NARROW, WIDE
from .pattern_quoting import CONTROLS, SPECIAL, WATCHED, Watched, held_by_category, held_by_set

MAX_PATTERN = 20_000  # characters
MAX_REPEAT = 65_535
MAX_COPIES = 100_000  # of what is repeated by counts within counts
MAX_GROUPS = 200

Target = Literal["engine", "wide", "whole", "python"]

_META = set("\\.+*?()|[]{}^$#&-~")
_CONTROL = {"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PatternError(ValueError):
    """A pattern that is refused, with the reason.

    only_here: true where it is a legal pattern which this target cannot take (look-around in an automaton).
    """

    def __init__(self, reason: str, *, only_here: bool = False) -> None:
        super().__init__(reason)
        self.only_here = only_here


@dataclass
class _Parentheses:
    """What stands between two parentheses. degree: backtracking on n characters takes up to n ** degree steps.

    cut: where its output begins. copies: how often its parts are repeated by counts, one count within the other.
    spared: whether it is a class that is written without the spare character.
    """

    look: bool = False
    degree: int = 0
    cut: int = 0
    copies: int = 1
    spared: bool = False


class Translator:
    """One walk over a pattern. Raises PatternError where it must not be passed on.

    classes: of what matches one character each, which of the watched characters it holds (see `pattern_quoting`).
    """

    def __init__(self, pattern: str, target: Target, spare: str = "") -> None:
        """spare: the control character that classes are written without where need be."""
        self.classes: list[Watched] = []
        self._text = pattern
        self._target: Target = target
        self._spare = spare
        self._at = 0
        self._out: list[str] = []
        self._groups = [_Parentheses()]
        self._atom: _Parentheses | None = None  # what a quantifier here would repeat
        self._deepest = 0
        self._names: dict[str, str] = {}

    @property
    def degree(self) -> int:
        return max(self._deepest, self._groups[0].degree) + (not self._text.startswith("^"))

    def translate(self) -> str:
        if len(self._text) > MAX_PATTERN:
            raise PatternError(f"it has {len(self._text)} characters; at most {MAX_PATTERN} are allowed")
        if self._text.startswith("(?i)"):
            self._out.append("(?i)")
            self._at = 4
        while self._at < len(self._text):
            self._step()
        if len(self._groups) > 1:
            raise PatternError("a ( is not closed")
        return "".join(self._out)

    def _step(self) -> None:
        char = self._text[self._at]
        match char:
            case "\\":
                self._escape()
            case "[":
                self._class()
            case "(":
                self._open()
            case ")":
                self._close()
            case "*" | "+" | "?" | "{":
                self._quantifier(char)
            case "^" | "$":
                self._at += 1
                if self._target == "whole":
                    self._check_edge(char)
                    return
                self._out.append(r"\Z" if char == "$" and self._target == "python" else char)
                self._atom = None
            case "|":
                self._at += 1
                self._out.append("|")
                self._atom = None
            case ".":
                self._at += 1
                self._emit(ANY)
            case _:
                self._at += 1
                self._emit_char(char)

    def _check_edge(self, anchor: str) -> None:
        """Refuse an anchor that is not at the edge of the pattern or of one of its outermost alternatives."""
        before, after = self._text[: self._at - 1], self._text[self._at :]
        at_edge = (not before or before.endswith("|")) if anchor == "^" else (not after or after.startswith("|"))
        if len(self._groups) > 1 or not at_edge:
            raise PatternError(f"{anchor} may only stand at the pattern's edge: the whole text is matched")

    def _emit(self, text: str) -> None:
        self._out.append(text)
        self._atom = _Parentheses()

    def _emit_char(self, char: str) -> None:
        self.classes.append(WATCHED & {char})
        self._emit(_literal(char))

    def _emit_class(self, text: str, held: Watched) -> None:
        """held: as in `classes`."""
        self.classes.append(held)
        spared = self._spare in held and not held >= SPECIAL
        self._emit(f"[{text}--{_class_literal(self._spare)}]" if spared else text)
        self._atom = _Parentheses(spared=spared)

    def _only_python(self, what: str) -> None:
        if self._target in ("engine", "whole"):
            raise PatternError(f"{what} cannot be part of a grammar", only_here=True)

    # --- escapes ----------------------------------------------------------------------------------------------------

    def _escape(self) -> None:
        kind = self._text[self._at + 1 : self._at + 2]
        if kind in ("b", "B"):
            self._only_python(f"the word boundary \\{kind}")
            self._at += 2
            self._atom = None
            if self._target == "wide":
                return
            word = EXACT["w"]
            ahead, behind = f"(?=[{word}])", f"(?<=[{word}])"
            not_ahead, not_behind = f"(?![{word}])", f"(?<![{word}])"
            edge = f"(?:{not_behind}{ahead}|{behind}{not_ahead})"
            self._out.append(edge if kind == "b" else f"(?:{behind}{ahead}|{not_behind}{not_ahead})")
        elif (kind in "123456789" and kind) or kind == "k":
            if self._target != "python":
                raise PatternError("a back reference cannot be part of a grammar")
            self._reference()
        elif kind and kind in "dDwWsS":
            self._at += 2
            self._emit_class(f"[{self._set(kind, negated=False)}]", held_by_set(kind, negated=False))
        elif kind in ("p", "P"):
            text, held = self._property()
            self._emit_class(text, CONTROLS if held is None else held)
        else:
            self._emit_char(self._escaped_char())

    def _reference(self) -> None:
        numbered = re.compile(r"\\(\d+)").match(self._text, self._at)
        named = re.compile(r"\\k<([A-Za-z_]\w*)>").match(self._text, self._at)
        found = numbered or named
        if not found:
            raise PatternError("\\k must be followed by <name>")
        self._at = found.end()
        self._emit(f"(?:\\{found[1]})" if numbered else f"(?P={found[1]})")

    def _set(self, kind: str, *, negated: bool) -> str:
        if self._target == "python":
            return EXACT[kind]
        return (WIDE if negated else NARROW)[kind]

    def _property(self) -> tuple[str, Watched | None]:
        """The text of a Unicode property, and which watched characters it holds, where that is known."""
        found = re.compile(r"\\([pP])\{(?:(?:General_Category|gc)=)?([A-Za-z_]+)\}").match(self._text, self._at)
        if not found:
            raise PatternError("\\p must be followed by {a Unicode category}")
        if self._target == "python":
            raise PatternError("Unicode properties cannot be checked", only_here=True)
        self._at = found.end()
        held = held_by_category(found[2])
        if held is not None and found[1] == "P":
            held = WATCHED - held
        return rf"\{found[1]}{{{found[2]}}}", held

    def _escaped_char(self) -> str:
        """The character that the escape sequence here stands for."""
        rest = self._text[self._at + 1 :]
        kind = rest[:1]
        if not kind:
            raise PatternError("it ends in a backslash")
        coded = re.match(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}", rest)
        if coded:
            self._at += 1 + coded.end()
            return self._paired(int(coded[1] or coded[2] or coded[3], 16))
        if kind == "c" and rest[1:2].isalpha() and rest[1:2].isascii():
            self._at += 3
            return chr(ord(rest[1]) % 32)
        if kind == "0" and not rest[1:2].isdigit():
            self._at += 2
            return "\0"
        if kind.isalnum() and kind.isascii() and kind not in _CONTROL:
            raise PatternError(f"the escape \\{kind} does not mean the same everywhere")
        self._at += 2
        return _CONTROL.get(kind, kind)

    def _paired(self, code: int) -> str:
        """The character of a code unit; two surrogates in a row are one character."""
        if 0xD800 <= code < 0xDC00:
            low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, self._at)
            if low:
                self._at = low.end()
                return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise PatternError(f"U+{code:04X} is not a character")
        return chr(code)

    # --- classes ----------------------------------------------------------------------------------------------------

    def _class(self) -> None:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        if self._text.startswith("]", self._at):
            if negated and not self._text.startswith("]]", self._at):
                self._at += 1
                self._emit(rf"[\x00-{END}]")
                return
            raise PatternError("[] does not mean the same everywhere")
        parts, holds = [], []
        while not self._text.startswith("]", self._at):
            text, held = self._class_item(negated)
            parts.append(text)
            holds.append(held)
        self._at += 1
        if any({self._set(kind, negated=negated) for kind in pair} <= set(parts) for pair in ("dD", "wW", "sS")):
            parts = [rf"\x00-{END}"]  # [\s\S] is meant as any character
            holds = [WATCHED]
        known = frozenset().union(*(held for held in holds if held is not None))
        held = WATCHED - known if negated else known
        self._emit_class(f"[{'^' if negated else ''}{''.join(parts)}]", CONTROLS if None in holds else held)

    def _class_item(self, negated: bool) -> tuple[str, Watched | None]:
        """The text of a character, range or set, and which watched characters it holds, where that is known."""
        first, held = self._class_char(negated)
        is_range = self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at)
        if not is_range:
            return first if len(first) > 1 else _class_literal(first), held
        self._at += 1
        last, more = self._class_char(negated)
        if len(first) > 1 or len(last) > 1:  # [\w-.]: a dash beside a class is itself
            text = "".join(part if len(part) > 1 else _class_literal(part) for part in (first, "-", last))
            return text, None if held is None or more is None else held | more
        if first > last:
            raise PatternError(f"the range {first}-{last} runs backwards")
        within = frozenset(char for char in WATCHED if first <= char <= last)
        return f"{_class_literal(first)}-{_class_literal(last)}", within

    def _class_char(self, negated: bool) -> tuple[str, Watched | None]:
        """One character, or (longer) the text of a set; and what it holds, as in `_class_item`."""
        char = self._text[self._at : self._at + 1]
        if not char:
            raise PatternError("a [ is not closed")
        kind = self._text[self._at + 1 : self._at + 2]
        if char == "\\" and kind and kind in "dDwWsS":
            self._at += 2
            return self._set(kind, negated=negated), held_by_set(kind, negated=negated)
        if char == "\\" and kind in ("p", "P"):
            return self._property()
        if char != "\\":
            self._at += 1
        elif kind == "b":
            self._at += 2
            char = "\b"
        else:
            char = self._escaped_char()
        return char, WATCHED & {char}

    # --- groups and repetition ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        found = re.compile(r"\(\?(:|=|!|<=|<!|P?<([A-Za-z_]\w*)>)").match(self._text, self._at)
        if not found and self._text.startswith("(?", self._at):
            raise PatternError(f"{self._text[self._at : self._at + 4]} is not a group that is known")
        opening = found[1] if found else ""
        look = opening in ("=", "!", "<=", "<!")
        if look:
            self._only_python("look-around")
        if len(self._groups) > MAX_GROUPS:
            raise PatternError(f"its groups are nested more than {MAX_GROUPS} deep")
        self._at = found.end() if found else self._at + 1
        if found and found[2]:
            if found[2] in self._names:
                raise PatternError(f"two groups are named {found[2]}")
            self._names[found[2]] = found[2]
            opening = f"P<{found[2]}>"
        plain = "(" if self._target == "python" else "(?:"
        self._out.append(f"(?{opening}" if look or opening == ":" or (self._target == "python" and opening) else plain)
        self._groups.append(_Parentheses(look, cut=len(self._out) - 1))
        self._atom = None

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError("a ) closes nothing")
        self._at += 1
        self._out.append(")")
        group = self._groups.pop()
        outer = self._groups[-1]
        if group.look and self._target == "wide":
            del self._out[group.cut :]
        elif group.look:
            self._deepest = max(self._deepest, outer.degree + group.degree)
        else:
            outer.degree += group.degree
        outer.copies = max(outer.copies, group.copies)
        self._atom = None if group.look else group

    def _quantifier(self, char: str) -> None:
        found = re.compile(r"\*|\+|\?|\{(\d+)(?:(,)(\d*))?\}").match(self._text, self._at)
        if not found:
            if re.compile(r"\{,\d*\}").match(self._text, self._at):
                raise PatternError("{,n} does not mean the same everywhere; {0,n} does")
            self._at += 1
            self._emit(_literal(char))
            return
        if self._atom is None:
            raise PatternError(f"there is nothing for {found[0]} to repeat")
        self._at = found.end()
        self._check_repeat(found)
        if self._atom.spared and found[0] in ("*", "+"):
            self._out[-1] = self._with_spare(self._out[-1], found[0])
        else:
            self._out.append(found[0])
        if self._text.startswith("+", self._at):
            raise PatternError("possessive repetition is not known everywhere")
        if self._text.startswith("?", self._at):  # lazy: the same texts match
            self._at += 1
        self._atom = None

    def _with_spare(self, text: str, quantifier: str) -> str:
        """A repeated class with the spare character, which stands beside the class, not in it."""
        spare = _class_literal(self._spare)
        if quantifier == "*":
            return f"(?:(?:{spare}*{text})*{spare}*)"
        return f"(?:(?:{spare}*{text})+{spare}*|{spare}+)"

    def _check_repeat(self, found: re.Match[str]) -> None:
        assert self._atom is not None
        low = int(found[1]) if found[1] else 0
        high = low if found[1] and not found[2] else int(found[3]) if found[3] else None
        if found[0] == "?":
            high = 1
        if max(low, high or 0) > MAX_REPEAT:
            raise PatternError(f"{found[0]} repeats more than {MAX_REPEAT} times")
        if high is not None and low > high:
            raise PatternError(f"{found[0]} counts backwards")
        if high is not None and high <= 1:
            return
        copies = self._atom.copies * max(1, low, high or 0)
        if copies > MAX_COPIES:
            raise PatternError(
                f"with {found[0]} something is repeated {copies} times; at most {MAX_COPIES} are allowed"
            )
        self._groups[-1].copies = max(self._groups[-1].copies, copies)
        loops = high is None or high > 10
        if self._target == "python" and loops and self._atom.degree:
            reason = "checking it may take exponential time: it repeats what repeats already"
            raise PatternError(reason, only_here=True)
        self._groups[-1].degree += loops


def _literal(char: str) -> str:
    return f"\\{char}" if char in _META else char


def _class_literal(char: str) -> str:
    if char.isalnum() and char.isascii():
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 256 else char
