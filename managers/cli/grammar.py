"""`sapwood grammar`: what a constraint would do, and to which documents."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...constrained.acceptance import accepts_document
from ...constrained.compiler import compile_constraint
from ...constrained.spec import Compiled, Constraint, ConstraintError, Kind, Unenforced
from ...runtime.text.tokenizer import load_tokenizer
from ...runtime.weights import hub
from ..errors import InvalidRequest
from ..vocabulary import vocabulary_of

REFUSED = 2
_KINDS: dict[str, Kind] = {"schema": "json_schema", "regex": "regex", "ebnf": "ebnf"}
_SUFFIXES = {".json": "schema", ".regex": "regex", ".txt": "regex", ".ebnf": "ebnf", ".gbnf": "ebnf"}


def grammar(arguments: argparse.Namespace) -> int:
    """Print what the constraint does. Raises InvalidRequest for files that cannot be read as what they should be."""
    constraint = _constraint(arguments)
    documents = [each for path in arguments.documents for each in _documents(Path(path), constraint.kind)]
    vocabulary = vocabulary_of(load_tokenizer(hub.resolve(arguments.model)))
    compile_constraint(msgspec.structs.replace(constraint, kind="json_object", body=""), vocabulary)  # to be warm
    show = _as_json if arguments.json else _as_text
    began = time.perf_counter()
    try:
        compiled = compile_constraint(constraint, vocabulary)
    except ConstraintError as error:
        refused = error.refused or [Unenforced("", "", str(error))]
        print(show(None, refused, _ms_since(began)), flush=True)
        return REFUSED
    print(show(compiled, [], _ms_since(began)), flush=True)
    for index, document in enumerate(documents):
        accepted = accepts_document(constraint, compiled, vocabulary, document)
        print(_verdict(index, accepted, as_json=arguments.json), flush=True)
    return 0


def _constraint(arguments: argparse.Namespace) -> Constraint:
    path = Path(arguments.file)
    body = _read(path)
    kind = arguments.kind or _SUFFIXES.get(path.suffix) or _kind_of(body)
    if kind is None:
        known = ", ".join(_SUFFIXES)
        raise InvalidRequest(f"{path.name} could be anything: say --schema, --regex or --ebnf (known without: {known})")
    return Constraint(
        _KINDS[kind],
        body.removesuffix("\n") if kind == "regex" else body,
        strict=not arguments.relax,
        max_whitespace=arguments.max_whitespace,
        max_string=arguments.max_string,
        engine=arguments.engine,
    )


def _kind_of(body: str) -> str | None:
    """What a text is that can hardly be anything else."""
    if "::=" in body:
        return "ebnf"
    try:
        return "schema" if isinstance(msgspec.json.decode(body), dict) else None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _documents(path: Path, kind: Kind) -> Iterator[str]:
    """The texts in a file."""
    text = _read(path)
    if path.suffix != ".jsonl":
        yield text.removesuffix("\n") if kind in ("regex", "ebnf") else text.strip()
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        yield _string(line, path, number) if kind in ("regex", "ebnf") else line.strip()


def _string(line: str, path: Path, number: int) -> str:
    try:
        return msgspec.json.decode(line, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequest(f"{path.name}, line {number}: a JSON string is expected here") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path.name} is not UTF-8: {error}") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


def _as_json(compiled: Compiled | None, refused: list[Unenforced], compile_ms: float) -> str:
    said = {
        "engine": compiled.engine if compiled else None,
        "enforced": compiled.enforced if compiled else [],
        "refused": [_named(each) for each in refused],
        "compile_ms": compile_ms,
        "relaxed": [_named(each) for each in compiled.relaxed] if compiled else [],
        "checked": bool(compiled and compiled.checks),
    }
    return msgspec.json.encode(said).decode()


def _named(each: Unenforced) -> dict[str, str]:
    return {"keyword": each.keyword, "pointer": each.pointer, "reason": each.reason}


def _as_text(compiled: Compiled | None, refused: list[Unenforced], compile_ms: float) -> str:
    if compiled is None:
        lines = [f"refused ({compile_ms:.1f} ms):", *(f"  {_sentence(each)}" for each in refused)]
        return "\n".join(lines)
    by_checks = ", together with checks of values as they close" if compiled.checks else ""
    lines = [f"engine: {compiled.engine}{by_checks}", f"compiled in {compile_ms:.1f} ms"]
    if compiled.enforced:
        lines.append(f"enforced: {', '.join(compiled.enforced)}")
    lines += [f"not enforced: {_sentence(each)}" for each in compiled.relaxed]
    return "\n".join(lines)


def _sentence(each: Unenforced) -> str:
    where = f"{each.keyword} at {each.pointer or '/'}: " if each.keyword else ""
    return where + each.reason


def _verdict(index: int, accepted: bool, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode({"document": index, "accepted": accepted}).decode()
    return f"document {index}: {'accepted' if accepted else 'rejected'}"
