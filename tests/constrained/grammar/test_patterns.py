"""Patterns mean the same to the grammar engine, to checks and to ECMA 262, as far as these agree; formats are exact."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.grammar.formats import FORMATS
from sapwood.constrained.grammar.patterns import PatternError, check_pattern, to_engine, to_python, to_whole
from sapwood.constrained.schema.document import escape
from sapwood.constrained.schema.validation import has_format, matcher, matcher_of_wide
from sapwood.constrained.spec import ConstraintError
from tests.constrained.deciding import compiled, verdicts

PIECES = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    r"\d",
    r"\w",
    r"\.",
    "(?:ab|b)",
    "(a)",
    "x?",
    "a*",
    "b+",
    "[a-c]{1,2}",
    "a{2}",
    r"\/",
    "_",
    " ",
]
FORMAT_TABLE = {
    "date": (["2024-02-29", "2000-02-29", "0001-01-01"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-1-1", ""]),
    "time": (["12:00:00Z", "23:59:60Z", "00:00:00.5+05:30"], ["12:00:00", "24:00:00Z", "12:00:60Z"]),
    "date-time": (
        ["2024-02-29T12:00:00Z", "2022-01-01t12:00:00.123-08:00"],
        ["2023-02-29T12:00:00Z", "2022-01-01 12:00:00Z"],
    ),
    "duration": (["P1Y", "P1DT12H", "PT36H", "P4W"], ["P", "PT", "P1", "P2D1Y", "P1YT", "P1Y2W"]),
    "email": (
        ["a@b.c", "te~st@example.com", "a@[127.0.0.1]", '"a b"@x.org'],
        ["a", "a@", ".t@x.org", "a..b@x.org", "a b@c"],
    ),
    "idn-email": (["实例@실례.테스트"], ["실례"]),
    "hostname": (["www.example.com", "a"], ["-a", "a-", "a..b", "", "a_b", "a" * 64, ".".join(["a" * 60] * 5)]),
    "idn-hostname": (["실례.테스트", "a.b"], ["-실례", "a·l", "〮실례"]),
    "ipv4": (["1.2.3.4", "255.255.255.255"], ["01.2.3.4", "256.1.1.1", "1.2.3"]),
    "ipv6": (
        ["::", "::1", "1::", "1:2::192.168.0.1", "1:2:3:4:5:6:7::"],
        [":", "12345::", "1::2::3", "1:2:3:4:5:6:7", "::1%eth0"],
    ),
    "uri": (
        ["http://a.b/?q=1#f", "urn:x", "ldap://[2001:db8::7]/c=GB?one", "mailto:a@b.c"],
        ["//a", "abc", "http:// a", "http://[::1"],
    ),
    "uri-reference": (["/a", "//a/?b", "#f", "", "a"], ["\\\\w", "a b"]),
    "iri": (["http://ƒøø.ßår/?∂éœ=πîx#πîüx"], ["a", "http:// é"]),
    "iri-reference": (["/é", "#ƒ"], ["\\é"]),
    "uri-template": (["http://x/{term:1}/{+y,z*}", ""], ["{", "a{b"]),
    "uuid": (["2EB8AA08-AA98-11EA-B4AA-73B441D16380"], ["2eb8aa08-aa98-11ea-b4aa73b441d16380", "x" * 36]),
    "json-pointer": (["", "/a~0b/~1", "/"], ["/a~2", "a"]),
    "relative-json-pointer": (["1", "0#", "2/0/x"], ["-1", "01", "+1/a"]),
    "regex": (["^a+$", "(?<=a)b"], ["(", "[z-a]"]),
}


def search(pattern: str, text: str) -> bool:
    """What the engine says."""
    return verdicts({"type": "string", "pattern": pattern}, [text])[0]


@settings(deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    ends=st.sampled_from([("", ""), ("^", ""), ("", "$"), ("^", "$"), ("^(?:", "|x)$")]),
    texts=st.lists(st.text(alphabet="abcx1. /_", max_size=6), min_size=1, max_size=6),
)
def test_the_engine_and_checks_agree_with_re(pieces: list[str], ends: tuple[str, str], texts: list[str]) -> None:
    pattern = ends[0] + "".join(pieces) + ends[1]
    expected = [re.search(pattern, text) is not None for text in texts]
    assert verdicts({"type": "string", "pattern": pattern}, texts) == expected
    assert [matcher(pattern)(text) for text in texts] == expected


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        (r"^\W$", ["-", "—"], ["a", "_"]),
        (r"^[\s\S]$", ["\n", "\ufeff", "a"], [""]),
        (r"^[^]$", ["\n"], [""]),
        (r"^\u0041\x42\ud83d\ude00$", ["AB😀"], ["AB"]),
        (r"^[\w.-]+$", ["a.b-c"], ["a b"]),
        ("^a{$", ["a{"], ["a"]),
        ("^{a}$", ["{a}"], ["a"]),
        ("^[[a]]$", ["[]", "a]"], ["a"]),
        ("^[&~a]#$", ["&#", "~#"], ["b#"]),
        (r"^\cA\0\/$", ["\x01\0/"], ["A0/"]),
        ("^(?i)x$"[0:0] + "(?i)^x$", ["X", "x"], ["y"]),
        ("^a*?b$", ["aab", "b"], ["a"]),
        (r"^\p{L}+$", ["añ"], ["a1"]),
        ("a$|^b", ["xa", "bx"], ["ax"]),
        ("^(?<year>[0-9]{4})$", ["2024"], ["24"]),
    ],
)
def test_what_a_pattern_finds(pattern: str, found: list[str], missed: list[str]) -> None:
    for says in (search, lambda pattern, text: matcher(pattern)(text)):
        assert [says(pattern, text) for text in found] == [True] * len(found)
        assert [says(pattern, text) for text in missed] == [False] * len(missed)


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        (r"\bfoo\b", ["a foo b"], ["food"]),
        (r"(?<=a)b(?!c)", ["ab"], ["b", "abc"]),
        (r"^(?=.*\d)[^\\]+$", ["a1", '1"'], ["a", "1\\"]),
    ],
)
def test_what_no_grammar_can_say_is_checked(pattern: str, found: list[str], missed: list[str]) -> None:
    with pytest.raises(PatternError) as error:
        to_engine(pattern)
    assert error.value.only_here
    assert all(matcher_of_wide(pattern)(text) for text in found)
    assert verdicts({"type": "string", "pattern": pattern}, [*found, *missed]) == [True] * len(found) + [False] * len(
        missed
    )


@pytest.mark.parametrize(
    "pattern", [r"^(a)\1$", r"^(a|b)\1$", r"^(?<q>['x]).*\k<q>$", r"(a)(?=b)\1", r"\bx(\w)\1", r"(?:(a)|b\1)"]
)
def test_what_is_referred_back_to_is_refused(pattern: str) -> None:
    """Nothing could be promised: a grammar says nothing of it, and a completion that a check fails has no other way."""
    for translate in (to_engine, to_whole):
        with pytest.raises(PatternError):
            translate(pattern)
    with pytest.raises(PatternError, match="back reference"):
        check_pattern(pattern)
    pointers = {
        "/pattern": {"type": "string", "pattern": pattern},
        "/patternProperties/" + escape(pattern): {"patternProperties": {pattern: {}}},
        "/propertyNames/pattern": {"propertyNames": {"pattern": pattern}},
        "/properties/a~1b/items/pattern": {"properties": {"a/b": {"items": {"pattern": pattern}}}},
        "/not/pattern": {"not": {"type": "string", "pattern": pattern}},
    }
    for pointer, schema in pointers.items():
        for engine in ("auto", "xgrammar"):
            with pytest.raises(ConstraintError, match="back reference") as refused:
                compiled(schema, engine=engine)
            assert [each.pointer for each in refused.value.refused] == [pointer]
        relaxed = compiled(schema, strict=False).relaxed
        assert [each.pointer for each in relaxed] == [pointer]
    assert has_format("regex", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "a{2,1}",
        "[z-a]",
        "*a",
        "a**",
        "x{3}{2}",
        "^*",
        "(?a)",
        r"\A",
        r"\e",
        "[]a]",
        "a{,2}",
        "\\",
        r"\u{110000}",
        "a++",
        "(?<x>a)(?<x>b)",
    ],
)
def test_what_is_no_pattern_is_refused_everywhere(pattern: str) -> None:
    for translate in (to_engine, to_python, to_whole):
        with pytest.raises(PatternError) as error:
            translate(pattern)
        assert not error.value.only_here


def test_anchors_at_the_edges_of_a_whole_text() -> None:
    assert to_whole("^ab$") == "ab"
    assert to_whole("^a|b$") == "a|b"
    for pattern in ("a^b", "(^a)", "a$b"):
        with pytest.raises(PatternError, match="edge"):
            to_whole(pattern)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)*(a|aa)*(a|aa)*b", r"^(?!.*(.*.*.*)x)a*", "(.*.*.*.*.*)=(.*.*)"])
@pytest.mark.alone
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    began = time.perf_counter()
    with contextlib.suppress(PatternError):  # which says that it may take exponential time
        matcher(pattern)("a" * 3000 + "!")
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize("name", FORMAT_TABLE)
def test_a_format_is_enforced(name: str) -> None:
    right, wrong = FORMAT_TABLE[name]
    schema = {"type": "string", "format": name}
    assert verdicts(schema, right) == [True] * len(right)
    assert verdicts(schema, wrong) == [False] * len(wrong)
    assert [has_format(name, text) for text in [*right, *wrong]] == [True] * len(right) + [False] * len(wrong)


def test_every_format_of_the_standard_is_known() -> None:
    assert FORMATS.keys() | {"regex"} == FORMAT_TABLE.keys()
