"""Checks of values as they close: when they say no, what they hold back, and that they can be gone back over."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.checks import Checker
from sapwood.constrained.spec import Constraint
from tests.constrained.deciding import OCTETS, compact, compiled

UNIQUE = {"type": "object", "properties": {"s": {"type": "string"}, "t": {"type": "array", "uniqueItems": True}}}
ODD = {
    "items": {"properties": {"n": {"not": {"multipleOf": 5}}, "t": {"uniqueItems": True}}},
    "propertyNames": {"maxLength": 1},
}
BOTH = {"properties": {"a": ODD, "b": {"additionalProperties": ODD}}}
documents = st.recursive(
    st.one_of(st.integers(0, 11), st.text(max_size=3), st.booleans(), st.none(), st.floats(0, 9)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("anstx"), inner, max_size=3),
    max_leaves=8,
)


CHECKS = compiled(BOTH).checks


def checker(schema: Any) -> Checker:
    return Checker(compiled(schema).checks)


def test_nothing_is_held_where_nothing_is_checked() -> None:
    made = compiled({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert made.checks == ""
    empty = Checker("")
    assert empty.push(b'{"a":1}')
    assert empty.held_from is None
    assert empty.finish()


def test_only_an_open_value_that_is_checked_is_held() -> None:
    checks = checker(UNIQUE)
    held = []
    for byte in b'{"s":"ab","t":[1,"x"]}':
        assert checks.push(bytes([byte]))
        held.append(checks.held_from)
    assert held == [None] * 15 + [15, None, 17, 17, None, None, None]


def test_an_outer_value_that_is_checked_holds_all_of_it() -> None:
    checks = checker({"items": {"not": {"type": "object", "minProperties": 2}}})
    assert checks.push(b'[null,{"a":[')
    assert checks.held_from == 6
    assert checks.push(b"1]}")
    assert checks.held_from is None
    assert not checks.push(b',{"a":1,"b":2}')


def test_a_failure_names_keyword_and_pointer_and_takes_nothing() -> None:
    checks = checker(UNIQUE)
    assert checks.push(b'{"t":[1,2')
    assert not checks.push(b",1]")
    assert checks.reason.startswith("uniqueItems at /properties/t/uniqueItems: ")
    assert checks.held_from == 8
    assert checks.push(b"3,1 ]}") is False
    assert checks.push(b"3,1.5]}")


def test_a_number_at_the_root_closes_with_the_text() -> None:
    checks = checker({"type": "integer", "not": {"const": 15}})
    assert checks.push(b"15")
    assert checks.held_from == 0
    assert not checks.finish()
    assert checks.reason.startswith("not at ")
    assert checks.push(b"0")
    assert checks.finish()


def test_names_are_checked_as_they_come() -> None:
    checks = checker({"propertyNames": {"not": {"pattern": "[^a-c]"}}})
    assert checks.push(b'{"ab":{"z":1},"c')
    assert checks.held_from == 14
    assert not checks.push(b'd"')
    assert checks.reason.startswith("propertyNames at /propertyNames: ")
    assert checks.push(b'b":1}')


def test_names_under_a_pattern_that_no_grammar_can_say_are_checked_as_they_come() -> None:
    properties = {"^(?!__)[a-z_]+$": {"type": "integer"}}
    checks = checker({"type": "object", "patternProperties": properties, "additionalProperties": False})
    assert checks.push(b'{"a":1,')
    assert checks.held_from is None
    assert not checks.push(b'"__a"')


def test_going_back_forgets_what_came_after() -> None:
    checks = checker(UNIQUE)
    assert checks.push(b'{"t":[1,2,"abc"')
    checks.truncate(8)
    assert checks.held_from is None
    assert checks.push(b'2,"abc",3')
    assert checks.held_from == 16
    checks.truncate(11)
    assert checks.held_from == 10
    assert not checks.push(b'x",1]')


def test_escapes_and_brackets_in_strings_do_not_confuse_it() -> None:
    checks = checker({"items": {"not": {"const": 'a"]}\\'}}})
    assert checks.push(compact(['x"]', "\\", ["}", {'"': "\\\\"}]]).encode()[:-1])
    assert not checks.push(b"," + compact('a"]}\\').encode())


@settings(deadline=None)
@given(document=documents, cuts=st.lists(st.integers(1, 9), max_size=20), back=st.lists(st.integers(0, 60), max_size=4))
def test_it_says_what_validation_of_the_whole_says(document: Any, cuts: list[int], back: list[int]) -> None:
    """However the text is cut into pieces, and however often some of it is taken back and comes again."""
    data = compact({"a": document, "b": document}).encode()
    whole = Checker(CHECKS)
    expected = whole.push(data) and whole.finish()
    pieces = Checker(CHECKS)
    at, fine = 0, True
    for cut in [*cuts, *[7] * len(data)]:
        if not (fine := pieces.push(data[at : at + cut])):
            break
        at = min(at + cut, len(data))
        if back and at:
            at -= min(back.pop(), at)
            pieces.truncate(at)
    assert (fine and pieces.finish()) == expected
    assert expected == Draft202012Validator(BOTH).is_valid({"a": document, "b": document})


def test_spans_in_free_text_are_checked_too() -> None:
    structures = [
        {"begin": "<f>", "schema": UNIQUE["properties"]["t"], "end": "</f>"},
        {"begin": "<g>", "schema": {"type": "integer", "not": {"const": 7}}, "end": "</g>"},
        {"begin": "<h>", "regex": "[0-9]+", "end": "</h>"},
    ]
    body = json.dumps({"triggers": ["<"], "structures": structures})
    checks = Checker(compile_constraint(Constraint("structural_tag", body), OCTETS).checks)
    assert checks.push(b"[1,1] <f>[1,2]</f> <h>7</h> <g>7")
    assert checks.held_from == 31
    assert not checks.push(b"</g>")
    assert checks.push(b"1</g> and <f")
    assert checks.held_from is None
    assert not checks.push(b">[3,3]")
    checks.truncate(10)
    assert not checks.push(b"1,1]")


@pytest.mark.parametrize("schema", [UNIQUE, ODD, BOTH])
def test_its_text_is_the_same_every_time(schema: Any) -> None:
    assert compiled(schema).checks == compiled(json.loads(json.dumps(schema))).checks


@pytest.mark.alone
def test_a_check_that_takes_too_much_work_fails_soon() -> None:
    """Each definition asks twice for the next one; a validator that does not count would never come back."""
    doubling = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    schema = {"items": {"not": {"$ref": "#/$defs/d0"}}, "$defs": {**doubling, "d40": {"minimum": 5}}}
    checks = checker(schema)
    began = time.perf_counter()
    assert not checks.push(b"[1,")
    assert "too much work" in checks.reason
    assert checks.push(b"[7,") is False
    assert time.perf_counter() - began < 5


def test_no_name_comes_twice_in_an_object() -> None:
    checks = checker({"type": "object", "additionalProperties": {"type": ["integer", "object"]}})
    assert checks.taken == []
    assert checks.push(b'{"a":1,')
    assert checks.taken == [b'"a"']
    assert checks.push(b'"')
    assert checks.taken == [b'a"']
    assert checks.push(b"a")
    assert checks.taken == [b'"']
    assert checks.held_from == 7
    assert not checks.push(b'"')
    assert checks.reason == 'an object has the property "a" twice'
    assert checks.push(b'b":{"a":2,"')
    assert checks.taken == [b'a"']
    assert not checks.push(b'\\u0061"'), "the name that is meant counts, however it is spelled"
    assert checks.push(b'c":3},"')
    assert sorted(checks.taken) == [b'a"', b'ab"']
    checks.truncate(8)
    assert checks.taken == [b'a"']
    assert checks.push(b'"":1,"\x7f":2'.removeprefix(b'"'))
    assert not checks.push(b',""'), "an empty name is a name"
    assert not checks.push(b',"\\u007f"')
    assert checks.push(b',"d":[{"a":1},{"a":2}]}')
    assert checks.finish()


def test_an_object_with_named_properties_only_needs_no_check() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    assert not compiled(closed).checks
    assert not compiled({**closed, "minProperties": 1}).checks
