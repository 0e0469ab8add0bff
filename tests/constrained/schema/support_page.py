"""Writes `docs/json-schema.md`, which says how each part of JSON Schema is enforced: `python -m
tests.constrained.schema.support_page`, at the top of the repository.

Every "how" is asked of the code, by compiling the examples of `support_rows`; a test fails where the page is stale.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from sapwood.constrained import spec
from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.grammar.pattern_translator import MAX_PATTERN, MAX_REPEAT
from sapwood.constrained.matching.acceptance import accepts
from sapwood.constrained.matching.backtracking import MAX_TRIES
from sapwood.constrained.schema.check import check_schema
from sapwood.constrained.schema.document import MAX_DEPTH
from sapwood.constrained.schema.keyword_values import MAX_VALUES
from sapwood.constrained.schema.lowering.scalars import FRACTION_DIGITS
from sapwood.constrained.schema.normal import MAX_PROPERTIES
from sapwood.constrained.schema.normalise import MAX_SCHEMAS
from sapwood.constrained.spec import Constraint, ConstraintError
from tests.constrained.deciding import OCTETS, compact, constraint_of, leaves_to_checks
from tests.constrained.schema.support_rows import EXAMPLES, FEATURES, FORMATS, ODD, Example, Json

PAGE = Path(__file__).parents[3] / "docs" / "json-schema.md"
DEFAULTS = Constraint("json_schema")
GRAMMAR, CHECK, BOTH, REFUSED, IGNORED = "grammar", "check", "grammar and check", "refused", "not enforced"

SOME_DOCUMENTS: list[Json] = [None, True, 0, 1, 5, 6, 7, 0.5, 1e10, "", "a", "b", "aa bb"]
SOME_DOCUMENTS += [[], [1], [1, 1], [5, 5], [1, 2], {}, {"a": 1}, {"b": 1}, {"a": "b"}, {"a": 1, "b": 2}, {"": 1}]
"""By which it is told whether a grammar takes part."""

SHARE = """\
| | right | refused | accepts what is not valid | rejects what is valid |
|---|---|---|---|---|
| Sapwood | 180 of 180 (100.0 %) | 0 | 0 | 0 |
| llguidance alone | 161 of 180 (89.4 %) | 19 | 0 | 0 |
| xgrammar alone | 161 of 180 (89.4 %) | 0 | 10 | 9 |"""
"""Of `tests/bench/schema_table.py` over the 180 schemas and 631 documents that the project was handed (2026-12-01)."""


def how(schema: Json, keyword: str, no: Json = None) -> tuple[str, str]:
    """How a schema is enforced as to a keyword at its top, one of the five; and why it is not, where it is not.

    no: a document that the keyword forbids.
    """
    try:
        made = compile_constraint(constraint_of(schema), OCTETS)
    except ConstraintError as error:
        return REFUSED, error.refused[0].reason if error.refused else str(error)
    if made.relaxed:
        return IGNORED, made.relaxed[0].reason
    if not leaves_to_checks(made):
        return GRAMMAR, ""
    rest = compile_constraint(constraint_of({name: each for name, each in schema.items() if name != keyword}), OCTETS)
    grammar, without = replace(made, checks=""), replace(rest, checks="")
    texts = [compact(document) for document in [no, *SOME_DOCUMENTS]]
    narrower = any(accepts(without, OCTETS, text) and not accepts(grammar, OCTETS, text) for text in texts)
    return (BOTH if narrower else CHECK), ""


def how_xgrammar(schema: Json) -> str:
    """The same for the other engine, which says less by itself."""
    constraint = Constraint("json_schema", json.dumps(schema), engine="xgrammar", extra_properties=True)
    try:
        return "check" if check_schema(constraint, lambda grammar: "").checks else "grammar"
    except ConstraintError:
        return "refused"


def page() -> str:
    parts = [_INTRODUCTION, _keywords(EXAMPLES), _FORMATS, _formats(), _PATTERNS, _patterns(), _ODD, _keywords(ODD)]
    return "\n\n".join(part.strip("\n") for part in [*parts, _LIMITS, _MEASURED]) + "\n"


def _keywords(examples: list[Example]) -> str:
    odd = examples is ODD
    lines = ["| what | example | how |" if odd else "| keyword | example | how | `xgrammar` |"]
    lines.append("|---|---|---|" if odd else "|---|---|---|---|")
    for example in examples:
        kind, reason = how(example.schema, example.keyword, example.no)
        said = f"{kind}: {reason}" if reason else kind
        name = example.note if odd else f"`{example.keyword}`" + (f", {example.note}" if example.note else "")
        cells = [name, _code(_short(example.schema)), said]
        lines.append(_row(cells if odd else [*cells, how_xgrammar(example.schema)]))
    return "\n".join(lines)


def _formats() -> str:
    lines = ["| format | such as | how |", "|---|---|---|"]
    for name, (yes, no) in FORMATS.items():
        lines.append(_row([f"`{name}`", _code(yes), how({"type": "string", "format": name}, "format", no)[0]]))
    return "\n".join(lines)


def _patterns() -> str:
    lines = ["| feature | example | how |", "|---|---|---|"]
    for feature in FEATURES:
        kind, reason = how({"type": "string", "pattern": feature.pattern}, "pattern", feature.no)
        why = reason.rpartition("is refused: ")[2]
        lines.append(_row([feature.what, _code(feature.pattern), f"{kind}: {why}" if why else kind]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _short(schema: Json) -> str:
    return compact(schema).replace(":", ": ").replace(",", ", ").replace("https: //", "https://")


_INTRODUCTION = f"""
# What Sapwood enforces of JSON Schema

This page is written by a program: `python -m tests.constrained.schema.support_page`. Do not edit it by hand.

It is about the schemas of `json_schema`, of `response_format` and of tools. Drafts 4, 6, 7, 2019-09 and 2020-12 are
read as `$schema` says; without it, 2020-12 is assumed, and what older drafts spell in another way is taken where it can
mean one thing only. Every answer satisfies its schema. How that is brought about differs:

* **grammar**: the model can write nothing else. Whatever would break the rule is never offered to it. This costs next
  to nothing.
* **check**: the grammar lets more through than the schema does. A value is checked as soon as it is complete, and where
  it fails, the completion goes back and another way is taken. What may still be taken back is not shown to anyone. A
  request for which {MAX_TRIES} tries find no way ends with an error that names the rule, not with a wrong answer.
* **grammar and check**: the grammar keeps the model near it, a check does the rest.
* **refused**: the request is answered with status 400, a sentence, and the place in the schema, before anything is
  computed. With `"strict": false` a keyword that nothing can enforce, or that is misspelt, is passed over instead, and
  the answer lists it under `relaxed`.
* **not enforced**: the standard calls it an annotation. It is passed over, and the answer lists it under `relaxed`.

Where a schema says something of properties that it does not name (`patternProperties`, `propertyNames`,
`additionalProperties`, counts), no object of an answer has one name twice: names are compared as they are written, and
one that is there already is not offered again. A pattern that only few names match, or a list of names, declares these
one by one. A schema that wants more properties than there are names for is refused.

`sapwood grammar schema.json document.json` says all this of a schema of yours, and whether a document could be an
answer.

## Keywords

How a keyword is enforced can depend on what stands in it and beside it; the rows are examples. In a schema where many
rules meet in one place, a keyword that "grammar" stands for may be left to a check. The last column is for requests
that say `"grammar_engine": "xgrammar"`: all rules hold there as well, but more of them by checks.
"""

_FORMATS = """
`$id`, `$anchor`, `$defs`, `definitions` and `$schema` serve references and drafts. `title`, `description`, `default`,
`examples`, `deprecated`, `readOnly`, `writeOnly` and `$comment` say nothing about a value.

## Formats
"""

_PATTERNS = f"""
## Patterns

`pattern`, and the names in `patternProperties`, are regular expressions of ECMA 262. Where dialects disagree on what a
class holds (is `ä` a `\\w`?), a completion has only what all of them accept; where they disagree on what a pattern
means, it is refused, and so is a back reference. A class that holds all control characters but not the quote, or not
the backslash, is taken without U+0010 unless `*` or `+` follows it. A pattern has at most {MAX_PATTERN} characters, and
a count in it is at most {MAX_REPEAT}.
"""

_ODD = """
## What is none of it
"""

_LIMITS = f"""
## Where the schema says nothing

Small models seldom find the end of what has no end, so completions have bounds where a schema has none. A request can
change most of them.

| what | bound | field |
|---|---|---|
| properties that the schema does not name, where it names some | none of them | `extra_properties` |
| length of a string without `maxLength`, `pattern` and `format` | {DEFAULTS.max_string} characters | `max_string` |
| white space between two tokens of JSON | {DEFAULTS.max_whitespace} characters | `max_whitespace` |
| digits after a number's point | {FRACTION_DIGITS} | |
| size of a number; of an integer | below 10^15; below 2^63 | |

A schema has at most {spec.MAX_CONSTRAINT_BYTES} bytes, {MAX_DEPTH} levels of nesting, {MAX_SCHEMAS} schemas within it,
{MAX_PROPERTIES} names in one object, {MAX_VALUES} values in one `enum`, and {spec.COMPILE_SECONDS:g} seconds to be
compiled; one that goes beyond is refused.
"""

_MEASURED = f"""
## Measured

Over 180 schemas from practice (function calls, configuration files, Kubernetes, drafts' own tests) with 631 documents,
valid and not, a schema counts as right when it is taken and all of its documents get the right verdict. Schemas by what
became of them:

{SHARE}

`python tests/bench/schema_table.py FOLDER --engine auto --alone` prints these figures for a folder of schemas.
"""


def main() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
