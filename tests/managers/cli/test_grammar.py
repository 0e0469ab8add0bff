"""`sapwood grammar`: what it says of constraints and documents, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood.__main__ import main
from sapwood.constrained.spec import Compiled, Constraint
from sapwood.managers.cli import grammar
from sapwood.managers.cli.options import as_typed
from sapwood.managers.front.requests.bodies import struct_from
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

SCHEMA = {
    "type": "object",
    "properties": {
        "hex": {"type": "string", "pattern": "^[0-9a-f]*$", "minLength": 2, "maxLength": 4},
        "tags": {"type": "array", "uniqueItems": True},
        "slug": {"type": "string", "format": "slug"},
    },
    "required": ["hex"],
    "additionalProperties": False,
}
ENFORCED = [
    "additionalProperties",
    "maxLength",
    "minLength",
    "pattern",
    "properties",
    "required",
    "type",
    "uniqueItems",
]


@pytest.fixture
def write(tmp_path: Path, smollm2_path: Path):
    """Writes a file; its path."""

    def write(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    return write


def test_lines_of_json(write, capsys) -> None:
    documents = '{"tags":[1,2],"hex":"ab1"}\n\n{"hex":"a"}\n{"hex":"ab","tags":[1,1.0]}\n{"hex"\n'
    reasons = ["/hex: 'a' is too short", "/tags: [1, 1.0] has non-unique elements", "it is not JSON: Expecting ':' "]
    assert main(["grammar", "--json", write("s.json", SCHEMA), write("d.jsonl", documents)]) == 0
    first, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"engine", "enforced", "refused", "compile_ms"} <= first.keys()
    assert (first["engine"], first["enforced"], first["refused"]) == ("llguidance", ENFORCED, [])
    assert 0 < first["compile_ms"] < 5000
    assert [each["pointer"] for each in first["relaxed"]] == ["/properties/slug/format"]
    assert rest[0] == {"document": 0, "accepted": True, "file": "d.jsonl", "line": 1}
    assert [(each["document"], each["accepted"], each["line"]) for each in rest[1:]] == [
        (1, False, 3),
        (2, False, 4),
        (3, False, 5),
    ]
    assert all(each["reason"].startswith(reason) for each, reason in zip(rest[1:], reasons, strict=True))


def test_text_for_people(write, capsys) -> None:
    pretty = json.dumps({"tags": [], "hex": "00"}, indent=2) + "\n"
    assert main(["grammar", write("s.json", SCHEMA), write("a.json", pretty), write("b.json", [])]) == 0
    out = capsys.readouterr().out
    assert out.startswith("engine: llguidance, together with checks of values as they close\ncompiled in ")
    assert f"enforced: {', '.join(ENFORCED)}\n" in out
    assert "not enforced: format at /properties/slug/format: the standard has no format 'slug': an annotation\n" in out
    assert out.endswith("a.json: accepted\nb.json: rejected: /: [] is not of type 'object'\n")


def test_why_a_document_is_rejected(write, capsys) -> None:
    properties = {"a": {"maximum": 5}, "b/c": {"anyOf": [{"type": "null"}, {"items": {"minLength": 2}}]}}
    schema = {"properties": {**properties, "d": {"type": "string"}}}
    files = {"a.json": {"a": 9}, "b.json": {"b/c": ["xx", "y"]}, "c.json": "{'a': 1}", "d.json": {"d": "x" * 1025}}
    assert main(["grammar", write("s.json", schema), *(write(*each) for each in files.items())]) == 0
    a, b, c, d = capsys.readouterr().out.splitlines()[-4:]
    assert a == "a.json: rejected: /a: 9 is greater than the maximum of 5"
    assert b == "b.json: rejected: /b~1c/1: 'y' is too short"
    assert c.startswith("c.json: rejected: it is not JSON: Expecting property name")
    assert d.startswith("d.json: rejected: the schema allows it, but completions have bounds")


@pytest.mark.parametrize("kind", ["schema", "regex"])
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ([], {}),
        (["--extra-properties"], {"extra_properties": True}),
        (["--max-whitespace", "64"], {"max_whitespace": 64}),
        (["--max-whitespace", "65"], {"max_whitespace": 65}),
        (["--max-string", "0"], {"max_string": 0}),
        (["--max-string", "1000001"], {"max_string": 1000001}),
        (["--relax", "--engine", "xgrammar"], {"strict": False, "grammar_engine": "xgrammar"}),
    ],
)
def test_it_compiles_and_refuses_what_a_server_would(kind, options, fields, write, capsys, monkeypatch) -> None:
    compiled = []

    def compile_constraint(constraint: Constraint, vocabulary: Any) -> Compiled:
        compiled.append(constraint)
        return Compiled("", "llguidance", b"")

    monkeypatch.setattr(grammar, "compile_constraint", compile_constraint)
    path = write("s.json", "true")
    field = "json_schema" if kind == "schema" else "regex"
    status = main(["grammar", f"--{kind}", path, *options])
    wanted, refusal = asked_of_a_server({field: "true", **fields})
    assert (status, compiled[-1:]) == (2 if refusal else 0, [] if refusal else [wanted])
    assert refusal in capsys.readouterr().err


def asked_of_a_server(fields: dict[str, Any]) -> tuple[Constraint | None, str]:
    """What a server would compile, or the sentence with which it refuses."""
    try:
        submit = to_submit(
            struct_from({"prompt": "hi", **fields}, GenerateRequest), vocab_size=300, defaults=OPENAI_DEFAULTS
        )
    except InvalidRequest as error:
        return None, str(error.renamed(as_typed(("max_whitespace", "max_string", "extra_properties"))))
    return submit.constraint, ""


def test_refusals_name_the_options_as_they_are_typed(write, capsys) -> None:
    assert main(["grammar", write("s.json", SCHEMA), "--max-whitespace", "65"]) == 2
    assert capsys.readouterr().err == "sapwood grammar: --max-whitespace must be between 0 and 64, not 65.\n"
    assert main(["grammar", write("r.regex", "a"), "--extra-properties"]) == 2
    assert "--extra-properties needs a schema; it has no meaning for regex." in capsys.readouterr().err


def test_properties_that_the_schema_does_not_name_need_an_option(write, capsys) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    paths = [write("s.json", schema), write("a.json", {"a": 1}), write("b.json", {"a": 1, "b": 2})]
    assert main(["grammar", *paths]) == 0
    out = capsys.readouterr().out
    reason = "the schema allows it, but where a schema names properties a completion has no others"
    assert out.endswith(f"a.json: accepted\nb.json: rejected: {reason}\n")
    assert main(["grammar", "--extra-properties", *paths]) == 0
    assert capsys.readouterr().out.endswith("a.json: accepted\nb.json: accepted\n")


def test_what_takes_a_server_too_long_is_refused(write, capsys, monkeypatch) -> None:
    monkeypatch.setattr(grammar, "COMPILE_SECONDS", 0.0)
    assert main(["grammar", "--json", write("s.json", SCHEMA)]) == 2
    [reason] = json.loads(capsys.readouterr().out)["refused"]
    assert reason["reason"].startswith("it takes more than 0 seconds to compile")


def test_a_document_that_is_missing_is_said_and_the_others_are_judged(write, tmp_path: Path, capsys) -> None:
    missing = str(tmp_path / "none.json")
    assert main(["grammar", write("s.json", SCHEMA), missing, write("b.json", {"hex": "00"})]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("\nb.json: accepted\n")
    assert "none.json cannot be read: No such file" in printed.err


def test_documents_may_be_left_out(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["grammar"])
    printed = capsys.readouterr().err
    assert "FILE [DOCUMENT ...]" in printed
    assert printed.endswith("the following arguments are required: FILE\n")


def test_a_document_that_is_given_as_the_schema_is_noticed(write, capsys) -> None:
    path = write("s.json", {"film": "Alien", "stars": 5})
    assert main(["grammar", path]) == 0
    warning = "the schema constrains nothing, any JSON value satisfies it: no keyword in it is enforced (film, stars"
    assert f"warning: {warning}" in capsys.readouterr().out
    assert main(["grammar", "--json", path]) == 0
    assert json.loads(capsys.readouterr().out)["warning"].startswith(warning)


def test_a_refused_schema_ends_with_2_and_its_reasons(write, capsys) -> None:
    path = write("s.json", {"properties": {"a/b": {"minimum": "1"}}})
    assert main(["grammar", "--json", path, write("d.json", {})]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    pointer = "/properties/a~1b/minimum"
    assert (said["engine"], said["enforced"]) == (None, [])
    assert said["refused"] == [{"keyword": "minimum", "pointer": pointer, "reason": "it must be a number, not a text"}]
    assert main(["grammar", path]) == 2
    assert f"minimum at {pointer}: it must be a number" in capsys.readouterr().out


def test_what_is_relaxed_is_said(write, capsys) -> None:
    path = write("s.json", {"items": {"$ref": "https://x.test/s.json"}, "maxItems": 1})
    assert main(["grammar", "--json", path]) == 2
    capsys.readouterr()
    assert main(["grammar", "--json", "--relax", path, write("d.jsonl", "[5]\n[5,6]\n")]) == 0
    first, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["keyword"], each["pointer"]) for each in first["relaxed"]] == [("$ref", "/items/$ref")]
    assert [each["accepted"] for each in rest] == [True, False]


@pytest.mark.parametrize(
    ("name", "options", "body", "documents", "expected"),
    [
        ("r.txt", [], "[a-z]+\n", '"abc"\n"ab1"\n"abc\\n"\n', [True, False, False]),
        ("r.regex", [], "a|b", '"a"\n', [True]),
        ("g.gbnf", [], 'root ::= "(" root ")" | "x"\n', '"((x))"\n"(x"\n', [True, False]),
        ("any", [], 'root ::= "x"', '"x"\n', [True]),
        ("any", [], '{"type": "integer"}', "1\n1.5\n", [True, False]),
        ("any", ["--schema"], "true", "1\n", [True]),
        ("x.json", ["--regex"], "1+", '"11"\n', [True]),
    ],
)
def test_kinds_of_constraints(name, options, body, documents, expected, write, capsys) -> None:
    assert main(["grammar", "--json", *options, write(name, body), write("d.jsonl", documents)]) == 0
    _, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["accepted"] for each in rest] == expected


def test_a_text_that_is_one_document(write, capsys) -> None:
    assert main(["grammar", write("r.txt", "a b"), write("d.txt", "a b\n"), write("e.txt", "a b\n\n")]) == 0
    out = capsys.readouterr().out
    assert out.endswith("d.txt: accepted\ne.txt: rejected: the regex does not allow this text\n")


@pytest.mark.parametrize(
    ("name", "body", "documents", "reason", "status"),
    [
        ("s.yaml", "a: 1", "", "could be anything: say --schema, --regex or --ebnf", 2),
        ("r.txt", "a", "a\n", "d.jsonl, line 1: a JSON string is expected here", 1),
    ],
)
def test_files_that_make_no_sense(name, body, documents, reason, status, write, capsys) -> None:
    assert main(["grammar", write(name, body), write("d.jsonl", documents)]) == status
    assert reason in capsys.readouterr().err


def test_a_missing_file(tmp_path: Path, capsys) -> None:
    assert main(["grammar", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err
