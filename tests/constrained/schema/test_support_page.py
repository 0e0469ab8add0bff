"""`docs/json-schema.md` says what the code does, and the code does what the page says."""

from __future__ import annotations

import pytest

from sapwood.constrained.grammar import formats
from sapwood.constrained.schema.normalise import KEYWORDS, SILENT
from tests.constrained.deciding import verdicts
from tests.constrained.schema.support_page import IGNORED, PAGE, REFUSED, how, page
from tests.constrained.schema.support_rows import EXAMPLES, FEATURES, FORMATS, ODD, Example, Feature


def test_the_page_is_not_stale() -> None:
    """If it is: `python -m tests.constrained.schema.support_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_is_about_every_keyword_and_format() -> None:
    assert {example.keyword for example in EXAMPLES} == KEYWORDS
    assert FORMATS.keys() == formats.FORMATS.keys() | formats.FORMAT_CHECKS.keys()
    silent = {name for name in SILENT if f"`{name}`" not in PAGE.read_text(encoding="utf-8")}
    assert silent <= {"id", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"}, "which serve references only"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.keyword} {example.note}".strip())
def test_what_the_examples_of_keywords_allow(example: Example) -> None:
    if how(example.schema, example.keyword)[0] == REFUSED:
        assert example.no is None
        return
    assert verdicts(example.schema, [example.yes, example.no]) == [True, False]


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_examples_of_formats_allow(name: str) -> None:
    assert verdicts({"type": "string", "format": name}, list(FORMATS[name])) == [True, False]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.pattern)
def test_what_the_examples_of_patterns_allow(feature: Feature) -> None:
    schema = {"type": "string", "pattern": feature.pattern}
    if how(schema, "pattern")[0] == REFUSED:
        assert feature.no is None
        return
    assert verdicts(schema, [feature.yes, feature.no]) == [True, False]


@pytest.mark.parametrize("example", ODD, ids=lambda example: example.note)
def test_what_is_no_rule_is_refused_or_an_annotation(example: Example) -> None:
    assert how(example.schema, example.keyword)[0] == (REFUSED if example.no is None else IGNORED)
    if example.no is not None:
        assert verdicts(example.schema, [example.yes, example.no]) == [True, False]
