"""Enforces what no grammar expresses: a value is validated the moment it closes, while it can still be taken back.

Only parts of a schema that apply to a value for certain are looked at where it stands; what stands under anyOf and the
like is checked with the nearest value around it to which a part applies for certain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from ..schema.check_places import CheckPlace, Places
from ..schema.document import finite
from .json_scan import Closed, Scanner, Value

Json = Any
MAX_BARRED = 100  # names of one object that are barred before a first character of them stands there


@dataclass(frozen=True)
class _MarkedSpan:
    """A kind of span within a completion: what it begins after. json: it is JSON, with checks (places: None for none).

    Else it is text, with spans of its own in it: `level`; None where nothing is to be looked for.
    """

    begin: bytes
    json: bool
    places: Places | None
    level: _Level | None = None


@dataclass(frozen=True)
class _Level:
    """Text in which spans may begin. end: what the text ends with; None: it ends with the first of its spans."""

    spans: tuple[_MarkedSpan, ...]
    end: bytes | None = None

    @property
    def longest(self) -> int:
        """The bytes of the longest mark."""
        return max(len(self.end or b"x"), *(len(span.begin) for span in self.spans), 1)


@dataclass(frozen=True)
class _Plan:
    """What one `Compiled.checks` says: the checks of a completion that is JSON, or of JSON spans in free text.

    answer: what the completion is where it begins with none of the `starts`.
    """

    places: Places | None = None
    text: _Level | None = None
    answer: _MarkedSpan | None = None
    starts: tuple[bytes, ...] = ()

    @property
    def start(self) -> _State:
        if self.text is None:
            return _State(_scanner(self.places), self.places)
        return _State(None, levels=(self.text,), undecided=self.answer is not None)


@dataclass(frozen=True)
class _State:
    """A position in a completion. scanner: in JSON; None in text, in which spans may begin from `text_from` on.

    levels: the text, and the spans of text within it that are open. undecided: whether it may be the answer.
    """

    scanner: Scanner | None
    places: Places | None = None
    text_from: int = 0
    levels: tuple[_Level, ...] = ()
    undecided: bool = False


class Checker:
    """The checks of one completion.

    reason: why the last push or finish failed: keyword and JSON pointer into the schema, then what is wrong.
    is_repeat: whether it failed for a name that its object has already.
    """

    def __init__(self, checks: str) -> None:
        """checks: as in `Compiled.checks`; with "" everything passes."""
        self.reason = ""
        self.is_repeat = False
        self._plan = _compiled(checks) if checks else None
        self._data = bytearray()
        self._state = self._plan.start if self._plan else _State(None)
        self._history: list[tuple[int, _State]] = [(0, self._state)]

    def push(self, data: bytes) -> bool:
        """Take more bytes of the completion. False: a value that closed in them is wrong, and they are not taken."""
        if self._plan is None or not data:
            return True
        self.is_repeat = False
        length = len(self._data)
        self._data += data
        state = self._run(self._plan, self._state, length)
        if state is None:
            del self._data[length:]
            return False
        self._state = state
        self._history.append((len(self._data), state))
        return True

    def finish(self) -> bool:
        """Nothing follows. False: the value that ends here, a number, is wrong."""
        scanner = self._state.scanner
        closed = scanner.end(len(self._data)) if scanner else None
        return closed is None or self._is_right(closed, self._state) is not None

    @property
    def held_from(self) -> int | None:
        """Where in the completion the outermost open value begins that is yet to be checked; None: all is final."""
        if self._state.undecided:
            return 0
        return self._state.scanner.held if self._state.scanner else None

    @property
    def taken(self) -> list[bytes]:
        """What must not come next: each would complete a property's name that its object has already."""
        scanner = self._state.scanner
        if scanner is None or not scanner.distinct or scanner.frame is None or scanner.escaped:
            return []
        names = [name.encode("utf-8", "surrogatepass").replace(b"\x7f", b"\\u007f") for name in scanner.frame.seen]
        if scanner.mode == "name":
            return names if len(names) <= MAX_BARRED else []
        begun = bytes(self._data[scanner.start :]) if scanner.mode == "name string" else b""
        return [name[len(begun) :] for name in names if begun and name.startswith(begun)]

    def truncate(self, length: int) -> None:
        """Go back to the completion's first `length` bytes."""
        if self._plan is None or length >= len(self._data):
            return
        while self._history[-1][0] > length:
            self._history.pop()
        known, self._state = self._history[-1]
        rest = bytes(self._data[known:length])
        del self._data[known:]
        self.push(rest)

    def _run(self, plan: _Plan, state: _State, at: int) -> _State | None:
        """The state after the data from `at` on; None where a value is wrong."""
        end = len(self._data)
        while at < end:
            if state.scanner is None:
                at, state = self._in_text(plan, state)
                continue
            at, scanner, closed = state.scanner.step(self._data, at, partial(_begin, state.places))
            state = replace(state, scanner=scanner)
            if closed is not None:
                seen = self._is_right(closed, state)
                if seen is None:
                    return None
                state = replace(state, scanner=scanner.noted(seen))
            if state.levels and scanner.mode == "after" and scanner.frame is None:
                levels = state.levels
                while len(levels) > 1 and levels[-1].end is None:
                    levels = levels[:-1]
                state = _State(None, None, at, levels)
        return state

    def _in_text(self, plan: _Plan, state: _State) -> tuple[int, _State]:
        """Look for the next span; where it starts, or the end of the data."""
        if state.undecided:
            return self._decide(plan, state)
        level = state.levels[-1]
        marks = [(span.begin, span) for span in level.spans] + ([(level.end, None)] if level.end else [])
        begins = [(at, mark, span) for mark, span in marks if (at := self._data.find(mark, state.text_from)) >= 0]
        if not begins:
            text_from = max(state.text_from, len(self._data) - level.longest + 1)
            return len(self._data), replace(state, text_from=text_from)
        at, mark, span = min(begins, key=lambda each: each[0])
        inside = at + len(mark)
        if span is None:
            levels = state.levels[:-1]
            while len(levels) > 1 and levels[-1].end is None:
                levels = levels[:-1]
            return inside, _State(None, None, inside, levels)
        return inside, _entered(span, inside, state.levels)

    def _decide(self, plan: _Plan, state: _State) -> tuple[int, _State]:
        """Whether the completion is the answer, which is known once it begins with one of the starts or cannot."""
        if self._data.startswith(plan.starts):
            return 0, replace(state, undecided=False)
        if any(start.startswith(self._data) for start in plan.starts) or plan.answer is None:
            return len(self._data), state
        return 0, _entered(plan.answer, 0, ())

    def _is_right(self, closed: Closed, state: _State) -> str | None:
        """None where a closed value or property name is wrong; else what later items must not be equal to, or ""."""
        if not closed.checked or state.places is None:
            return ""
        try:
            value = json.loads(self._data[closed.start : closed.end], parse_float=finite)
        except ValueError as error:
            self.reason = f"a number at byte {closed.start}: {error}"
            return None
        problem_of = state.places.name_problem if closed.is_name else state.places.problem
        for place in closed.places:
            problem = problem_of(place, value)
            if problem:
                self.reason = problem
                return None
        if not closed.unique and not (closed.is_name and state.places.distinct):
            return ""
        key = json.dumps(value if closed.is_name else _comparable(value), sort_keys=True, ensure_ascii=False)
        if key in closed.seen and closed.is_name:
            self.reason = f"an object has the property {key[:100]} twice"
            self.is_repeat = True
            return None
        if key in closed.seen:
            owner = _unique_owner(state)
            self.reason = f"uniqueItems at {owner}/uniqueItems: an item is there twice: {key[:100]}"
            return None
        return key


def _entered(span: _MarkedSpan, inside: int, levels: tuple[_Level, ...]) -> _State:
    """The state where a span has begun."""
    if span.json:
        return _State(_scanner(span.places), span.places, levels=levels)
    return _State(None, None, inside, (*levels, span.level or _Level(())) if span.level or not levels else levels)


def _scanner(places: Places | None) -> Scanner:
    return Scanner(distinct=places is not None and places.distinct)


def _begin(places: Places | None, scanner: Scanner) -> Value:
    """What applies to the value that begins where a scanner stands."""
    if places is None:
        return Value()
    frame = scanner.frame
    if frame is None:
        found: tuple[CheckPlace, ...] = places.root
    elif frame.key is not None:
        found = places.of_property(frame.places, frame.key)
    else:
        found = places.of_item(frame.places, frame.index)
    unique = frame is not None and frame.key is None and any(place.unique for place in frame.places)
    return Value(found, unique or any(place.check for place in found), unique)


def _unique_owner(state: _State) -> str:
    frame = state.scanner.frame if state.scanner else None
    return next((place.pointer for place in frame.places if place.unique), "") if frame else ""


def _comparable(value: Json) -> Json:
    """Equal for values that JSON Schema calls equal: 1.0 and 1 are."""
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return value


@lru_cache(maxsize=64)
def _compiled(checks: str) -> _Plan:
    """Shared by all completions under the same constraint."""
    said = json.loads(checks)
    if "spans" not in said:
        return _Plan(Places(said))
    spans, answer = tuple(map(_span, said["spans"])), said.get("answer")
    if answer is not None and answer["begin"]:  # it has a mark of its own
        spans, answer = (*spans, _span(answer)), None
    starts = tuple(map(_mark, said.get("starts", ())))
    return _Plan(None, _Level(spans), _span(answer) if answer is not None else None, starts)


def _span(said: dict[str, Any]) -> _MarkedSpan:
    places = Places(said["checks"]) if said.get("checks") else None
    level = None
    if "inside" in said:
        level = _Level(tuple(map(_span, said["inside"])), None if said["end"] is None else _mark(said["end"]))
    return _MarkedSpan(_mark(said["begin"]), said["json"], places, level)


def _mark(said: str | list[str | int]) -> bytes:
    """A mark in the record of a completion: text, and ids of control tokens as `Vocabulary.mark` writes them."""
    parts = [said] if isinstance(said, str) else said
    return b"".join(part.encode() if isinstance(part, str) else b"\xff[%d]" % part for part in parts)
