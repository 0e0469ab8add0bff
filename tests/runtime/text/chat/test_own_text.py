"""Strings that know whose characters they hold: they read as plain strings, and take no character for their own."""

from __future__ import annotations

from typing import Any

import markupsafe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.runtime.text.chat.own_text import OwnText, concat, marked_safe, plain, written

# Own letters are capital, others small, so that a text shows what its mask should say; signs may be either.
PARTS = st.lists(st.tuples(st.booleans(), st.text("ab| ", max_size=4)), max_size=5)


@st.composite
def texts(draw: st.DrawFn) -> OwnText:
    return concat(written(text.upper()) if own else text for own, text in draw(PARTS))


def check(made: Any, expected: Any) -> None:
    """The text is the expected one, and each own character is a capital letter or a sign."""
    assert made == expected
    assert type(made) is type(expected) or isinstance(made, OwnText)
    if isinstance(made, OwnText):
        assert len(made.own_mask) == len(made)
        assert all(not char.islower() for char, own in zip(plain(made), made.own_mask) if own)
        assert all(own for char, own in zip(plain(made), made.own_mask) if char.isupper())


@given(one=texts(), two=texts(), start=st.integers(-9, 9), stop=st.integers(-9, 9), step=st.sampled_from([1, 2, -1]))
def test_cutting_and_joining(one: OwnText, two: OwnText, start: int, stop: int, step: int) -> None:
    a, b = plain(one), plain(two)
    check(one + two, a + b)
    check(one + b.lower(), a + b.lower())
    check(a.lower() + two, a.lower() + b)
    check(one[start:stop:step], a[start:stop:step])
    check(one * 2, a * 2)
    check(3 * one, 3 * a)
    check(one.strip(), a.strip())
    check(one.lstrip("A "), a.lstrip("A "))
    check(one.rstrip("b|"), a.rstrip("b|"))
    check(one.join([two, "x", one]), a.join([b, "x", a]))
    check(str(one), a)
    for piece, expected in zip(one.split("|", start), a.split("|", start), strict=True):
        check(piece, expected)
    assert one.split() == a.split()
    check(one.replace("|", two), a.replace("|", b))
    check(one.replace("a", "x", 1), a.replace("a", "x", 1))
    assert one.replace("", "x") == a.replace("", "x")
    if a:
        check(one[0], a[0])
        check(one[-1], a[-1])


@given(one=texts())
def test_what_is_not_followed_is_a_plain_string(one: OwnText) -> None:
    for made in ["".join(reversed(one)), one.swapcase(), one.zfill(99), f"<{one}>", repr(one), *one, *one.split()]:
        assert type(made) is str


@given(values=st.lists(texts(), min_size=2, max_size=2))
@pytest.mark.parametrize("form", ["<%s>%s|", "%s%%%r", "%5.1s<%-4s>", "%s\x00%s"])
def test_formatting_takes_no_value_for_its_own(values: list[OwnText], form: str) -> None:
    made = written(form) % tuple(values)
    assert made == form % tuple(map(plain, values))
    if isinstance(made, OwnText) and any(0 in value.own_mask for value in values):
        assert not any(own and char.isalpha() for char, own in zip(made, made.own_mask))


def test_formatting_keeps_the_literal_text() -> None:
    made = written("<%s|%d>%%") % ("a", 5)
    assert isinstance(made, OwnText)
    assert (plain(made), made.own_mask) == ("<a|5>%", bytes([1, 0, 1, 0, 1, 0]))
    with pytest.raises(TypeError):
        _ = written("%s") % ()
    with pytest.raises(TypeError):
        _ = written("x") % 1


def test_marked_as_safe_it_escapes_what_is_added() -> None:
    made = marked_safe(written("<T>")) + "a<b" + written("X") + 'y"'
    assert made == markupsafe.Markup("<T>") + "a<b" + "X" + 'y"' == "<T>a&lt;bXy&#34;"
    shown = str(made)
    assert isinstance(shown, OwnText)
    assert shown.own_mask == bytes([1] * 3 + [0] * 6 + [1] + [0] * 6)
    assert str("<" + marked_safe(written("X"))) == "&lt;X"
    assert marked_safe(written("<T>")).split("T") == ["<", ">"]
