"""Which known name was meant: surely, where a name may be there on purpose, or probably, where it is wrong anyhow."""

from __future__ import annotations

import pytest

from sapwood.constrained.near_names import probably_meant, surely_meant

KEYWORDS = ["if", "minimum", "maximum", "minLength", "uuid", "not"]
OPTIONS = ["tp", "temperature", "max_tokens", "port"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("minimun", "minimum"),
        ("min_length", "minLength"),
        ("MinLength", "minLength"),
        ("minmium", "minimum"),
        ("uuid4", None),
        ("x-minimum", None),
        ("$minimum", None),
        ("_minimum", None),
        ("fi", None),
        ("title", None),
        ("minimum" * 10, None),
    ],
)
def test_what_was_surely_meant(name: str, meant: str | None) -> None:
    assert surely_meant(name, KEYWORDS) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("max_new_tokens", "max_tokens"), ("tp_size", "tp"), ("prot", "port"), ("q", None)],
)
def test_what_was_probably_meant(name: str, meant: str | None) -> None:
    assert probably_meant(name, OPTIONS) == meant
