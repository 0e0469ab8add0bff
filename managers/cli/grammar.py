"""`sapwood grammar`: what a constraint would do, and to which documents.

It answers what a server would: a constraint takes the way of a request's, and has the same limits and defaults.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...constrained.compiler import compile_constraint
from ...constrained.matching.acceptance import accepts_document, why_rejected
from ...constrained.spec import COMPILE_SECONDS, Compiled, ConstraintError, Kind, Unenforced
from ...constrained.vocabulary import vocabulary_of
from ...runtime.text.tokenizers.loading import load_tokenizer
from ...runtime.weights import hub
from ..front.requests.constraints import OPTIONS, requested_constraint
from ..front.requests.ranges import check_ranges
from ..front.requests.request_fields import CompletionFields
from ..wire.errors import InvalidRequest
from .options import as_typed

REFUSED = 2
UNREADABLE = 1
_AS_FLAGS = ("max_whitespace", "max_string", "extra_properties")  # the options that the command line calls so, too
_KINDS: dict[str, Kind] = {"schema": "json_schema", "regex": "regex", "ebnf": "ebnf"}
_SUFFIXES = {".json": "schema", ".regex": "regex", ".txt": "regex", ".ebnf": "ebnf", ".gbnf": "ebnf"}


@dataclass(frozen=True)
class _JudgedText:
    """One text to judge. name: of its file. line: in a file of several."""

    name: str
    text: str
    line: int | None = None


def grammar(arguments: argparse.Namespace) -> int:
    """Print what the constraint does; the exit status.

    Raises InvalidRequest where the constraint's file cannot be read as what it should be. Of documents that cannot be
    read, standard error says so, and the status.
    """
    show = _as_json if arguments.json else _as_text
    fields = _fields(arguments)
    try:
        check_ranges(fields, vocab_size=1)
        constraint = requested_constraint(fields)
        assert constraint is not None
    except InvalidRequest as error:
        if error.field in OPTIONS:
            raise error.renamed(as_typed(_AS_FLAGS)) from None
        print(show(None, [Unenforced("", "", str(error))], 0.0), flush=True)
        return REFUSED
    vocabulary = vocabulary_of(load_tokenizer(hub.resolve(arguments.model)))
    compile_constraint(msgspec.structs.replace(constraint, kind="json_object", body=""), vocabulary)  # to be warm
    began = time.perf_counter()
    try:
        compiled = compile_constraint(constraint, vocabulary)
        if time.perf_counter() - began > COMPILE_SECONDS:
            raise ConstraintError(f"it takes more than {COMPILE_SECONDS:g} seconds to compile; make it simpler")
    except ConstraintError as error:
        refused = error.refused or [Unenforced("", "", str(error))]
        print(show(None, refused, _ms_since(began)), flush=True)
        return REFUSED
    print(show(compiled, [], _ms_since(began)), flush=True)
    status = index = 0
    for path in arguments.documents:
        try:
            for document in _documents(Path(path), constraint.kind):
                accepted = accepts_document(constraint, compiled, vocabulary, document.text)
                why = "" if accepted else why_rejected(constraint, vocabulary, document.text)
                print(_verdict(index, document, why, as_json=arguments.json), flush=True)
                index += 1
        except InvalidRequest as error:
            print(f"{error}", file=sys.stderr, flush=True)
            status = UNREADABLE
    return status


def _fields(arguments: argparse.Namespace) -> CompletionFields:
    """The constraint as a request would say it."""
    path = Path(arguments.file)
    body = _read(path)
    kind = arguments.kind or _SUFFIXES.get(path.suffix) or _kind_of(body)
    if kind is None:
        known = ", ".join(_SUFFIXES)
        raise InvalidRequest(f"{path.name} could be anything: say --schema, --regex or --ebnf (known without: {known})")
    given: dict[str, Any] = {_KINDS[kind]: body.removesuffix("\n") if kind == "regex" else body}
    options = {name: getattr(arguments, name) for name in OPTIONS}
    return CompletionFields(**given, **{name: value for name, value in options.items() if value is not None})


def _kind_of(body: str) -> str | None:
    """What a text is that can hardly be anything else."""
    if "::=" in body:
        return "ebnf"
    try:
        return "schema" if isinstance(msgspec.json.decode(body), dict) else None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _documents(path: Path, kind: Kind) -> Iterator[_JudgedText]:
    """The texts in a file. Raises InvalidRequest where it, or the next one in it, cannot be read."""
    text = _read(path)
    if path.suffix != ".jsonl":
        yield _JudgedText(path.name, text.removesuffix("\n") if kind in ("regex", "ebnf") else text.strip())
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        text = _string(line, path, number) if kind in ("regex", "ebnf") else line.strip()
        yield _JudgedText(path.name, text, number)


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
        "warning": _warning(compiled) if compiled else "",
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
    lines += [f"warning: {_warning(compiled)}"] if _warning(compiled) else []
    return "\n".join(lines)


def _sentence(each: Unenforced) -> str:
    where = f"{each.keyword} at {each.pointer or '/'}: " if each.keyword else ""
    return where + each.reason


def _warning(compiled: Compiled) -> str:
    """What to say of a schema none of whose keywords JSON Schema knows: somebody may have passed a document."""
    if compiled.enforced or not compiled.relaxed:
        return ""
    names = ", ".join(each.keyword for each in compiled.relaxed)[:200]
    return f"the schema constrains nothing, any JSON value satisfies it: no keyword in it is enforced ({names} are not)"


def _verdict(index: int, document: _JudgedText, why: str, *, as_json: bool) -> str:
    """why: it is rejected; "" where it is accepted."""
    if as_json:
        said = {"document": index, "accepted": not why, "file": document.name}
        said |= {"line": document.line} if document.line is not None else {}
        return msgspec.json.encode(said | ({"reason": why} if why else {})).decode()
    place = document.name if document.line is None else f"{document.name}, line {document.line}"
    return f"{place}: rejected: {why}" if why else f"{place}: accepted"
