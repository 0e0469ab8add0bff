"""A pattern in a schema is about the characters of a string, however JSON spells them: `\\` and `"` are never let
through in their escaped form where it forbids them.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sapwood.constrained.engines.registry import load
from sapwood.constrained.grammar.formats import FORMATS
from sapwood.constrained.grammar.patterns import to_engine, to_whole
from sapwood.constrained.matching.acceptance import accepts_document
from sapwood.constrained.schema.validation import has_format
from tests.constrained.deciding import OCTETS, compact, compiled, constraint_of, verdicts

CHARACTERS = [*map(chr, range(0x80)), "\xa0", "é", "\u2028", "\ufeff", "\uffff", "😀"]
SPARE = "\x10"  # the control character that a class is written without; see pattern_quoting
NEGATED = [
    r"[^\\]",
    '[^"]',
    r'[^\\"]',
    r"[^\"]",
    r'[^\\/:*?"<>|]',
    r"[^\u005c]",
    r"[^\x5c\x22]",
    r"[^\\\n]",
    r"[^\\\0]",
]
NEGATED += ["[^/]", "[^a]", r"[^\n]", r"[^\b]", "[^ -~]", r"[^\x00-\x1f]", r"[^\x00-\x1f\"]", r"[^\d\\]", r"[^\w\\]"]
NEGATED += [r"[^\s\\]", r"[^\S\\]", r"[^\D]", r"[^\W]", r"[^\r\n\"]", r"[^\\-]", r"[^\W\\]", r"[^\]\\]"]
POSITIVE = [
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"[\s\S]",
    r"[\x00-\x1f]",
    r"[\x00-\x21#-\x7f]",
    r"[\0-\[\]-\uffff]",
]
POSITIVE += [
    r"[\x00-\x7f]",
    "[!-~]",
    r"[\\]",
    '["]',
    r"[\\a]",
    r"\\",
    '"',
    r"\"",
    r"\/",
    "/",
    r"\n",
    r"\r",
    r"\t",
    r"\f",
]
POSITIVE += [r"\v", r"\0", r"\x10", r"[\x10]", r"\u0041", r"\u005c", r"\x22", "😀"]
JOINED = [
    r"(?:[^\"\t]|\t)",
    r"(?:[\0-\x0f]|[\x10-\x1f]|[a-z])",
    r'(?:[^"\x10]|\x10)',
    r"(?:[^\\]|\\)",
    r"(?:\s|[^\s\"])",
]
JOINED += [r"(?:[^\\\"]|\\.)?"]
ONLY_ECMA = {"[^]": r"[\s\S]", r"\cJ": r"\n", r"[^\cA\\]": r"[^\x01\\]", r"\u{5c}": r"\\", r"\ud83d\ude00": "😀"}
ONE_CHARACTER = {each: each for each in (*NEGATED, *POSITIVE, *JOINED)} | ONLY_ECMA


def spellings(char: str) -> set[str]:
    """All the ways in which JSON writes a character inside a string."""
    units = char.encode("utf-16-be")
    lower = "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    short = {"\\": "\\\\", '"': '\\"', "/": "\\/", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    found = {lower, re.sub(r"[a-f]", lambda m: m[0].upper(), lower)}
    if char in short:
        found.add(short[char])
    if char not in '\\"' and char >= " ":
        found.add(char)
    assert all(json.loads(f'"{each}"') == char for each in found)
    return found


@pytest.mark.parametrize("pattern", ONE_CHARACTER)
def test_every_class_and_escape_against_every_spelling_of_every_character(pattern: str) -> None:
    """The grammar alone, on the text as it is: what it accepts is right; what is right, it accepts in some spelling."""
    disputed = "\x1c\x1d\x1e\x1f\xa0é\u2028\ufeff\uffff😀" if re.search(r"\\[sSwWdD]", pattern) else ""
    grammar = compiled({"type": "string", "pattern": f"^(?:{pattern})$"})
    assert not grammar.checks
    template = load(grammar, OCTETS)
    wrong, missed = [], []
    for char in CHARACTERS:
        expected = re.search(f"(?a)^(?:{ONE_CHARACTER[pattern]})\\Z", char) is not None
        found = []
        for each in spellings(char):
            matcher = template.start()
            if all(matcher.accept(byte) for byte in f'"{each}"'.encode()) and matcher.may_end:
                found.append(each)
        if char not in disputed:
            wrong += found if not expected else []
            missed += [char] if expected and not found else []
    assert wrong == []
    assert missed in ([], [SPARE], ["\x11"])
    assert not missed or "[" in pattern


@pytest.mark.parametrize(
    ("pattern", "document"),
    [(r"^[^\\]+$", r"js\x/"), ('^[^"]+$', 'a"b'), (r'^[^\\/:*?"<>|]+$', r"a\b"), (r'^[^\\/:*?"<>|]+$', 'a"b')],
)
def test_a_negated_class_is_kept_in_an_object(pattern: str, document: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    constraint, grammar = constraint_of(schema), compiled(schema)
    for text in (json.dumps({"a": document}), compact({"a": document}), json.dumps({"a": document}).replace(" ", "")):
        assert not accepts_document(constraint, grammar, OCTETS, text)
    assert accepts_document(constraint, grammar, OCTETS, compact({"a": "js-x\n\x10\x7f😀"}))


def test_a_negated_class_in_names() -> None:
    for schema in (
        {"type": "object", "patternProperties": {r"^[^\\]+$": {"type": "integer"}}, "additionalProperties": False},
        {"type": "object", "propertyNames": {"pattern": r"^[^\\]+$"}},
        {"type": "object", "patternProperties": {r"^(?!x)[^\\]+$": {"type": "integer"}}, "additionalProperties": False},
    ):
        assert verdicts(schema, [{"a": 1}, {"a\\b": 1}, {"\\": 1}, {'"': 1}]) == [True, False, False, True]


@pytest.mark.parametrize("repeat", ["*", "+", "*?", "+?"])
def test_a_repeated_class_misses_no_character_at_all(repeat: str) -> None:
    pattern = f'^[^"]{repeat}$'
    texts = ["", *CHARACTERS, "\x10\x10", "a\x10", "\x10a", "a\x10\x10b\x10"]
    expected = [re.search(f'^[^"]{repeat}\\Z', text) is not None for text in texts]
    assert verdicts({"type": "string", "pattern": pattern}, texts) == expected


PIECES = [
    r"[^\\]",
    '[^"]',
    r"[^\\\"]+",
    r"[^\"/]*",
    r"[^a\\]{1,2}",
    r"[^\n]",
    r"[\x00-\x1f]",
    "a",
    r"\\",
    '"',
    r"\n",
    "b?",
]
PIECES += [r"(?:[^\"\\]|\\.)*", r"(?:[^\"\t]|\t)", r"\x10", "[ -~]", r"(?:a|[^\\b])+"]


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    ends=st.sampled_from([("^", r"\Z"), ("", ""), ("^(?:", r"|x)\Z")]),
    texts=st.lists(st.text(alphabet='ab\\"/\n\t\0\x1f\x7fé😀', max_size=5), min_size=1, max_size=8),
)
def test_patterns_of_negated_classes_agree_with_jsonschema(
    pieces: list[str], ends: tuple[str, str], texts: list[str]
) -> None:
    oracle = ends[0] + "".join(pieces) + ends[1]
    pattern = oracle.replace(r"\Z", "$")
    validator = Draft202012Validator({"type": "string", "pattern": oracle})
    expected = [validator.is_valid(text) for text in texts]
    assert verdicts({"type": "string", "pattern": pattern}, texts) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_formats_let_no_escape_through(name: str) -> None:
    texts = [text for char in '\\"\n' for text in (char, f"a{char}", f"/{char}", f"http://a/{char}", f"{char}@a.b")]
    expected = [has_format(name, text) for text in texts]
    assert verdicts({"type": "string", "format": name}, texts) == expected
    pattern = re.compile(r"\\" if name not in ("json-pointer", "relative-json-pointer") else r"[^\s\S]")
    assert [text for text, right in zip(texts, expected, strict=True) if right and pattern.search(text)] == []


def test_only_what_stands_in_json_is_written_without_the_spare_character() -> None:
    assert to_whole('[^"]+') == r"[^\x{22}]+"
    assert r"\x{10}" in to_engine('^[^"]$')
    assert to_engine("^[^a]$") == "^[^a]$"
    assert to_engine(r'^[^"\x10]|\x10$').count(r"--\x{11}") == 1


@pytest.mark.parametrize(("pattern", "text"), [(r"^\\u0041$", "\\u0041"), (r"^\\x41$", "\\x41"), (r"^\\\x41$", "\\A")])
def test_a_backslash_before_what_looks_like_an_escape(pattern: str, text: str) -> None:
    assert verdicts({"type": "string", "pattern": pattern}, [text, "A", "\\"]) == [True, False, False]
