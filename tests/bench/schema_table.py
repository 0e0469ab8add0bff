"""How well schemas are enforced: a table over a folder of .jsonl files with schemas and documents.

Each line of a file is a JSON object with `id`, `schema` and `tests`, a list of {"valid": bool, "data": document}.

    python tests/bench/schema_table.py FOLDER [--alone] [--engine auto] [--verbose]

A document counts as accepted as it is for `sapwood grammar --extra-properties`. With --alone the two libraries are
measured, too, as they are without Sapwood's schema check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.acceptance import accepts, accepts_document
from sapwood.constrained.spec import Compiled, Constraint, ConstraintError
from sapwood.constrained.vocabulary import Vocabulary, vocabulary_of
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.weights import hub

Json = Any


@dataclass
class Row:
    """counts: of schemas, by what became of them. ms: compile times. notes: one line for every schema that went
    wrong.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self, name: str, schemas: int) -> str:
        quantiles = statistics.quantiles(self.ms, n=10) if len(self.ms) > 1 else [0.0] * 9
        share = 100 * self.counts["right"] / max(1, schemas)
        shown = (self.counts[each] for each in ("right", "accepted an invalid", "rejected a valid", "refused"))
        numbers = "".join(f"{number:>18}" for number in shown)
        return f"{name:<18}{numbers}{share:>9.1f} %{statistics.median(self.ms):>10.2f}{quantiles[8]:>10.2f}"


def main() -> int:
    """The exit code: 1 where an invalid document was accepted under auto."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--alone", action="store_true", help="measure the libraries without the schema check, too")
    parser.add_argument("--engine", action="append", help="only this engine; may be given several times")
    parser.add_argument("--verbose", action="store_true", help="say which schemas went wrong, and how")
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    vocabulary = vocabulary_of(load_tokenizer(hub.resolve(options.model)))
    cases = list(_cases(options.folder))
    print(f"{len(cases)} schemas, {sum(len(case['tests']) for case in cases)} documents\n")
    heads = ("right", "accepted invalid", "rejected valid", "refused")
    print(f"{'':<18}{''.join(f'{head:>18}' for head in heads)}{'right':>11}{'ms median':>10}{'ms p90':>10}")
    failed = False
    for name, judge in _judges(options, vocabulary):
        judge({"schema": {"type": "integer"}, "tests": []}, Row())  # imports and caches
        row = Row()
        for case in cases:
            row.counts[judge(case, row)] += 1
        print(row.line(name, len(cases)), flush=True)
        if options.verbose:
            print("\n".join(row.notes))
        failed |= name == "auto" and bool(row.counts["accepted an invalid"])
    return int(failed)


def _cases(folder: Path) -> Iterator[Json]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)


Judge = Callable[[Json, Row], str]


def _judges(options: argparse.Namespace, vocabulary: Vocabulary) -> Iterator[tuple[str, Judge]]:
    for engine in options.engine or ("llguidance", "xgrammar", "auto"):
        yield engine, lambda case, row, engine=engine: _judge(case, row, vocabulary, engine)
    if options.alone:
        yield "llguidance alone", lambda case, row: _judge_alone(case, row, vocabulary, _llguidance_alone)
        yield "xgrammar alone", lambda case, row: _judge_alone(case, row, vocabulary, _xgrammar_alone)


def _judge(case: Json, row: Row, vocabulary: Vocabulary, engine: Any) -> str:
    text = json.dumps(case["schema"], ensure_ascii=False)
    constraint = Constraint("json_schema", text, engine=engine, extra_properties=True)
    began = time.perf_counter()
    try:
        compiled = compile_constraint(constraint, vocabulary)
    except ConstraintError as error:
        row.notes.append(f"  {case['id']}: refused: {error}")
        return "refused"
    finally:
        row.ms.append((time.perf_counter() - began) * 1000)
    return _verdict(case, row, lambda text: accepts_document(constraint, compiled, vocabulary, text))


def _judge_alone(case: Json, row: Row, vocabulary: Vocabulary, compile_: Callable[[str, Vocabulary], Compiled]) -> str:
    """Documents are taken as they are, but compact."""
    began = time.perf_counter()
    try:
        compiled = compile_(json.dumps(case["schema"], ensure_ascii=False), vocabulary)
    except (ConstraintError, RuntimeError, ValueError) as error:
        row.notes.append(f"  {case.get('id')}: refused: {str(error)[:200]}")
        return "refused"
    finally:
        row.ms.append((time.perf_counter() - began) * 1000)
    return _verdict(case, row, lambda text: accepts(compiled, vocabulary, text))


def _verdict(case: Json, row: Row, accepted: Callable[[str], bool]) -> str:
    wrong = []
    for test in case["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        if accepted(text) != test["valid"]:
            wrong.append("rejected a valid" if test["valid"] else "accepted an invalid")
            row.notes.append(f"  {case['id']}: {wrong[-1]}: {text[:200]}")
    return min(wrong, default="right")


def _llguidance_alone(schema: str, vocabulary: Vocabulary) -> Compiled:
    from llguidance import LLMatcher

    from sapwood.constrained.compiler import complaint

    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    said = complaint(grammar, vocabulary)
    if said:
        raise ConstraintError(said)
    return Compiled("", "llguidance", grammar.encode())


def _xgrammar_alone(schema: str, vocabulary: Vocabulary) -> Compiled:
    import xgrammar

    compiler = xgrammar.GrammarCompiler(vocabulary.xgrammar_info, max_threads=1, cache_enabled=False)
    made = compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"), strict_mode=False)
    return Compiled("", "xgrammar", made.serialize_json().encode())


if __name__ == "__main__":
    sys.exit(main())
