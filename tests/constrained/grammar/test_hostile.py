"""Hostile schemas, regexes and grammars: in bounded time refused with a sentence, or compiled to what they mean."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.acceptance import accepts
from sapwood.constrained.spec import Constraint, ConstraintError, Kind
from tests.constrained.deciding import OCTETS

SECONDS = 5.0  # far more than any of these takes on a quiet machine


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


def many(count: int) -> dict[str, Any]:
    return {f"p{i}": {"type": "integer"} for i in range(count)}


def schema(**keywords: Any) -> str:
    return json.dumps(keywords)


DOUBLING = {
    f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}]}
    for i in range(30)
}
SPREAD = {
    f"a{i}": {"oneOf": [{"$ref": f"#/$defs/a{i + 1}"}, *({"const": f"{i}{j}"} for j in range(20))]} for i in range(8)
}
DOUBLED = {"$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d30": {"type": "integer"}}}
ENDLESS = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
}
PRODUCT = [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(8)]} for i in range(12)]

REFUSED: dict[str, tuple[Kind, str, str]] = {
    "500 levels": ("json_schema", nested(500), "nested 501 deep"),
    "100,000 levels": ("json_schema", "[" * 100_000, "nested 100000 deep"),
    "not JSON": ("json_schema", "{", "not JSON"),
    "not a number": ("json_schema", '{"minimum": NaN}', "NaN"),
    "a number too large": ("json_schema", '{"minimum": 1e999}', "too large"),
    "endless": ("json_schema", json.dumps(ENDLESS), "required at /$defs/n/required: "),
    "a list": ("json_schema", "[]", "a JSON schema is an object or a boolean"),
    "two megabytes": ("json_schema", schema(description="x" * (2 << 20)), "bytes"),
    "too many values": ("json_schema", schema(enum=list(range(10_001))), "enum at /enum"),
    "too many properties": ("json_schema", schema(properties=many(1001)), "properties at /properties"),
    "a long pattern": ("json_schema", schema(pattern="a" * 30_000), "pattern at /pattern"),
    "a surrogate": ("json_schema", '"\ud800"', "encoded"),
    "open (": ("regex", "(", "not closed"),
    "backwards": ("regex", "a{2,1}", "backwards"),
    "backwards range": ("regex", "[z-a]", "backwards"),
    "look-behind": ("regex", "(?<=a)b", "look-around"),
    "look-ahead": ("regex", "(?=(a+)+)b", "look-around"),
    "back reference": ("regex", r"(a)\1", "back reference"),
    "empty regex": ("regex", "", "empty"),
    "nothing matches": ("regex", r"[^\x00-\u{10ffff}]", "no text"),
    "anchor inside": ("regex", "a^b", "edge"),
    "groups without end": ("regex", "(" * 5000, "nested"),
    "a million times": ("regex", "((a{1000})b){1000}", "100000"),
    "many times": ("regex", "a{99999999}", "times"),
    "two roots": ("ebnf", 'root ::= "a"\nroot ::= "b"', "root is defined a second time"),
    "an undefined rule": ("ebnf", "root ::= other", "other, which is not defined"),
    "no rules": ("ebnf", "", "empty"),
    "no root": ("ebnf", 'a ::= "x"', "no rule named root"),
    "endless rule": ("ebnf", "root ::= root", "never end"),
    "endless rules": ("ebnf", 'root ::= "x" a\na ::= "y" b\nb ::= a', "never end"),
    "deep groups": ("ebnf", "root ::= " + "(" * 500 + '"a"' + ")" * 500, "nested"),
    "huge repetition": ("ebnf", 'root ::= "a"{1,999999999}', "more than"),
    "open text": ("ebnf", 'root ::= "a', "line 1"),
    "no choice": ("choice", "[]", "at least one"),
    "choice of numbers": ("choice", "[1]", "list of texts"),
    "no tag": ("structural_tag", "{}", "structural tag"),
    "a structure's schema": (
        "structural_tag",
        '{"triggers":["<"],"structures":[{"begin":"<","end":">","schema":{"type":"x"}}]}',
        "structures[0]: type at /type",
    ),
}

# what is compiled, with texts that are accepted and texts that are not
COMPILED: dict[str, tuple[Kind, str, list[str], list[str]]] = {
    "90 levels": ("json_schema", nested(90), ["[[]]"], ["[[}"]),
    "300 properties": ("json_schema", schema(type="object", properties=many(300)), ['{"p3":1}'], ['{"p3":"x"}']),
    "1,000 properties, closed": (
        "json_schema",
        schema(type="object", properties=many(1000), additionalProperties=False),
        ['{"p3":1}'],
        ['{"p3":"x"}', '{"q":1}'],
    ),
    "a million items": ("json_schema", schema(type="array", maxItems=1_000_000), ["[1]"], ["[1"]),
    "a million characters": ("json_schema", schema(type="string", minLength=1_000_000), [], ['"a"']),
    "10,000 characters": ("json_schema", schema(type="string", minLength=10_000), [f'"{"a" * 10_000}"'], ['"a"']),
    "2,000 values": ("json_schema", schema(enum=[f"v{i}" for i in range(2000)]), ['"v77"'], ['"x"']),
    "references that double": ("json_schema", json.dumps(DOUBLED), ["5"], ['"x"']),
    "alternatives of alternatives": (
        "json_schema",
        json.dumps({"$ref": "#/$defs/a0", "$defs": {**SPREAD, "a8": {"type": "integer"}}}),
        ["5"],
        ['"x"'],
    ),
    "exponential for backtracking": (
        "json_schema",
        schema(type="string", pattern="^(a+)+$"),
        [f'"{"a" * 50}"'],
        [f'"{"a" * 50}b"'],
    ),
    "the same, checked": (
        "json_schema",
        json.dumps({"oneOf": [{"pattern": "^(a+)+$", "type": "string"}, {"maxLength": 60, "type": "string"}]}),
        ['"b"', f'"{"a" * 40}b"'],
        ['"aa"'],
    ),
    "look-around, checked": ("json_schema", schema(type="string", pattern="^(?=.*a)(?=.*b).*$"), ['"xbya"'], ['"xb"']),
    "alternatives that multiply": ("json_schema", schema(allOf=PRODUCT), ['{"p0":3,"p11":7}'], ['{"p0":3,"p11":9}']),
    "legal with an empty part": ("regex", "(|ab)", ["", "ab"], ["a"]),
    "stars in stars": ("regex", "((((((a*)*)*)*)*)*)*b", ["aab"], ["aac"]),
    "Unicode classes": ("regex", r"[\p{L}\p{N}]{3,20}", ["añ9"], ["a-b"]),
    "not a word": ("regex", r"\W{2}\S", ["-—x"], ["abc"]),
    "left recursion": ("ebnf", 'root ::= root "a" | "b"', ["baaa"], ["a"]),
    "ambiguity": ("ebnf", 'root ::= root root | "a" | ""', ["aaaa", ""], ["b"]),
    "cuts": ("ebnf", 'root ::= "a" "ab" | "aa" "c" | "(" root ")"', ["aab", "aac", "(aab)"], ["aa"]),
    "Unicode": ("ebnf", 'root ::= [一-龥]+ "é"{2} | "\\u00df"', ["中文éé", "ß"], ["é"]),
    "5,000 choices": ("choice", json.dumps([f"c/{i}" for i in range(5000)]), ["c/4999"], ["c/5000"]),
}


@pytest.mark.alone
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_reason_and_again(name: str) -> None:
    kind, body, reason = REFUSED[name]
    began = time.perf_counter()
    for _ in range(2):
        with pytest.raises(ConstraintError) as error:
            compile_constraint(Constraint(kind, body), OCTETS)
        assert reason in str(error.value)
        assert len(str(error.value)) < 1000
    assert time.perf_counter() - began < SECONDS


@pytest.mark.alone
@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_to_what_it_means(name: str) -> None:
    kind, body, right, wrong = COMPILED[name]
    began = time.perf_counter()
    compiled = compile_constraint(Constraint(kind, body), OCTETS)
    assert [accepts(compiled, OCTETS, text) for text in right] == [True] * len(right)
    assert [accepts(compiled, OCTETS, text) for text in wrong] == [False] * len(wrong)
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_whitespace": -1}, "max_whitespace"),
        ({"max_whitespace": 10**9}, "max_whitespace"),
        ({"max_string": -1}, "max_string"),
    ],
)
def test_settings_have_limits(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConstraintError, match=named):
        compile_constraint(Constraint("json_object", **options), OCTETS)
