"""Regexes, choices, GBNF grammars, structural tags, the defaults of JSON: which texts they accept, on both engines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.spec import Constraint, ConstraintError, Kind, constraint_key
from tests.constrained.deciding import OCTETS, accepted, compact, compiled, constraint_of, verdicts

EXPRESSION = """
# sums of numbers
root ::= term (("+" | "-") term)*   # left to right
term ::= [0-9]{1,3} | "(" root ")"
"""
TAG: dict[str, Any] = {
    "triggers": ["<t>", "[f"],
    "structures": [
        {
            "begin": "<t>f=",
            "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            "end": "</t>",
        },
        {"begin": "<t>g=", "regex": "[0-9]+", "end": "</t>"},
        {"begin": "[f", "ebnf": 'root ::= "(" root ")" | "x"', "end": "]"},
    ],
}
FREE = "no call, é < t>"
CALLS = ['<t>f={"a":1}</t>', "<t>g=55</t>[f((x))]", "<t>g=1</t> and then text"]
BROKEN = ["<t>", "<t>h=1</t>", "<t>g=</t>", '<t>f={"a":"x"}</t>', "[f(x]", "<t>g=1</t", "<t>g=1</t><t>g="]


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
@pytest.mark.parametrize(
    ("kind", "body", "right", "wrong"),
    [
        ("regex", "^[a-z]+/[0-9]{2}$", ["ab/12"], ["ab/1", "ab12", ""]),
        ("regex", "안녕|🚲+", ["안녕", "🚲🚲"], ["안", ""]),
        ("choice", '["a/b", "a/bc", "é\\"\\n"]', ["a/b", "a/bc", 'é"\n'], ["a", "a/b ", ""]),
        ("ebnf", EXPRESSION, ["1+22-(3)", "7"], ["1+", "1234", "(1"]),
        ("ebnf", 'root ::= [^"\\\\]* "\\""', ['ab"', '"'], ["ab", 'a""']),
        (
            "json_object",
            "",
            ["{}", '{"a": [1,{"b":null}]}', '{"a":\n1}'],
            ["[]", " {}", "{} ", '{"a":  1}', "1", '{"a\n":1}', "{"],
        ),
    ],
)
def test_which_texts_are_accepted(kind: Kind, body: str, right: list[str], wrong: list[str], engine: str) -> None:
    assert accepted(kind, body, [*right, *wrong], engine=engine, max_whitespace=1) == right


GBNF_PARTS = st.recursive(
    st.sampled_from(['"a"', '"ab"', "[a-b]", "[^a]", '"b"?', '"a"*', '"c"{1,2}', '""', "x"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(" ".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})")
        | inner.map(lambda part: f"({part})+")
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=60)
@given(root=GBNF_PARTS, x=GBNF_PARTS, texts=st.lists(st.text(alphabet="abc", max_size=6), min_size=3, max_size=8))
def test_grammars_mean_to_llguidance_what_they_mean_to_xgrammar(root: str, x: str, texts: list[str]) -> None:
    body = f"root ::= {root}\nx ::= {x}"
    try:
        expected = accepted("ebnf", body, texts, engine="xgrammar")
    except ConstraintError:
        with pytest.raises(ConstraintError):
            accepted("ebnf", body, texts)
        return
    assert accepted("ebnf", body, texts) == expected


@pytest.mark.parametrize(
    ("at_least_one", "stop_after_first", "right"),
    [
        (False, False, [FREE, f"{FREE}{CALLS[0]}{FREE}", f"{FREE}{CALLS[0]}", "", *CALLS]),
        (True, False, CALLS),
        (False, True, [FREE, f"{FREE}{CALLS[0]}", "", CALLS[0]]),
        (True, True, [CALLS[0]]),
    ],
)
def test_structural_tags(at_least_one: bool, stop_after_first: bool, right: list[str]) -> None:
    body = json.dumps({**TAG, "at_least_one": at_least_one, "stop_after_first": stop_after_first})
    texts = [FREE, f"{FREE}{CALLS[0]}{FREE}", f"{FREE}{CALLS[0]}", "", *CALLS, *BROKEN]
    assert accepted("structural_tag", body, texts) == [text for text in texts if text in right]


def test_a_structural_tag_says_what_is_enforced_and_what_is_not() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "slug"}}
    body = json.dumps({"triggers": ["<"], "structures": [{"begin": "<", "schema": schema, "end": ">"}]})
    made = compile_constraint(Constraint("structural_tag", body), OCTETS)
    assert made.enforced == ["items", "type", "uniqueItems"]
    assert [each.keyword for each in made.relaxed] == ["format"]
    assert accepted("structural_tag", body, ['<["a","b"]>', '<["a","a"]>', "a"]) == ['<["a","b"]>', "a"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"triggers": []}, "1 to 50 triggers"),
        ({"triggers": ["<", "<t"]}, "is part of another trigger"),
        ({"structures": [{"begin": "x", "end": "", "regex": "a"}]}, "starts with none of the triggers"),
        ({"structures": [{"begin": "<t>", "end": ""}]}, "exactly one of schema, regex and ebnf"),
        (
            {"structures": [{"begin": "<t>", "end": "", "regex": "a"}, {"begin": "<t>x", "end": "", "regex": "a"}]},
            "start of another",
        ),
        ({"structures": [{"begin": "<t>", "end": "", "regex": "("}]}, r"structures\[0\]: the regex"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_structural_tag_that_makes_no_sense_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        compile_constraint(Constraint("structural_tag", json.dumps({**TAG, **change})), OCTETS)


@pytest.mark.parametrize(
    ("most", "right"), [(0, ["[1,2]"]), (1, ["[1,2]", "[1, 2 ]"]), (3, ["[1,2]", "[1, 2 ]", "[  1,\n\t 2]"])]
)
def test_whitespace_is_bounded(most: int, right: list[str]) -> None:
    texts = ["[1,2]", "[1, 2 ]", "[  1,\n\t 2]", "[1,    2]", " [1,2]", "[1,2] "]
    schema = '{"type": "array", "items": {"type": "integer"}}'
    assert accepted("json_schema", schema, texts, max_whitespace=most) == right


def test_strings_and_numbers_of_which_nothing_is_said_are_bounded() -> None:
    string = {"type": "string"}
    assert verdicts(string, ["a" * 1024, "a" * 1025]) == [True, False]
    assert verdicts(string, ["ab", "abc"], max_string=2) == [True, False]
    assert verdicts(string, ["a" * 5000], max_string=0) == [True]
    assert verdicts({"type": "string", "maxLength": 5000}, ["a" * 4000]) == [True]
    for schema in ({}, {"type": "object"}, {"type": "array"}):
        wrap = schema == {"type": "object"}
        documents = ["a" * 1024, "a" * 1025, 0.1234567891, 0.12345678912, 10**15, 10**16]
        kept = [{"a": each} if wrap else [each] for each in documents]
        assert verdicts(schema, kept) == [True, False, True, False, True, False]
    assert verdicts({"type": "integer"}, [2**62, 10**19]) == [True, False]


def test_control_characters_are_never_in_strings() -> None:
    assert accepted("json_schema", '{"type": "string"}', ['"a\tb"', '"a\\tb"', '"\\u0001"', '"\x7f"']) == [
        '"a\\tb"',
        '"\\u0001"',
    ]


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = json.dumps({"properties": {"b": {}, "a": {}, "c": {}}, "required": ["d", "a"], "type": "object"})
    texts = [
        '{"b":1,"a":2,"c":3,"d":4}',
        '{"a":1,"d":2}',
        '{"a":1,"b":2,"d":3}',
        '{"d":1,"a":2}',
        '{"a":1,"d":2,"z":0}',
    ]
    assert accepted("json_schema", schema, texts) == [texts[0], texts[1], texts[4]]


def test_the_same_constraint_compiles_to_the_same_everywhere() -> None:
    schema = {
        "oneOf": [{"type": "integer"}, {"type": "array", "uniqueItems": True, "items": {"$ref": "#"}}],
        "x": {"y": 1},
    }
    code = (
        "import sys, json; from tests.constrained.deciding import compiled, compact;"
        "made = compiled(json.loads(sys.argv[1]));"
        "print(compact([made.key, made.payload.decode(), made.checks, made.enforced]))"
    )
    run = [sys.executable, "-c", code, json.dumps(schema)]
    other = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    made = compiled(schema)
    assert [made.key, made.payload.decode(), made.checks, made.enforced] == other
    assert constraint_key(Constraint("regex", "a")) != constraint_key(Constraint("choice", "a"))
    assert made.key == constraint_key(constraint_of(schema))
    assert compile_constraint(Constraint("regex", "a"), OCTETS, "known").key == "known"


def test_documents_may_be_spaced_and_ordered_in_any_way() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"anyOf": [{"properties": {"y": {}, "x": {}}}, {"type": "null"}]}},
        "required": ["a"],
    }
    assert verdicts(schema, [{"b": {"x": 1, "y": 2}, "a": 1e-7, "z": 5}, {"b": None}]) == [True, False]
    assert compact({"b": 1}) == '{"b":1}'
