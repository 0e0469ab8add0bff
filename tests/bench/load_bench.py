"""What it costs to compile a schema, and what the worker then pays to load it.

    python tests/bench/load_bench.py FOLDER [--engine auto]

FOLDER holds .jsonl files with a "schema" in each line. Every schema is compiled as a compiler process does it, sent as
it is sent (encoded and decoded), and loaded as the worker does it. llguidance has no form of a compiled grammar that
could be sent, so loading builds it a second time from the grammar's text; xgrammar's is read from its serialised form.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.engines.registry import load
from sapwood.constrained.spec import Compiled, Constraint, ConstraintError, constraint_key
from sapwood.constrained.vocabulary import Vocabulary, vocabulary_of
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.weights import hub

TRIES = 3  # the best of them counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    vocabulary = vocabulary_of(load_tokenizer(hub.resolve(options.model)))
    compile_constraint(Constraint("json_object", engine=options.engine), vocabulary)
    rows = []
    for path in sorted(options.folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            text = json.dumps(json.loads(line)["schema"], ensure_ascii=False)
            constraint = Constraint("json_schema", text, engine=options.engine)
            try:
                rows.append(_measure(constraint, vocabulary))
            except ConstraintError:
                continue
    print(f"{len(rows)} schemas; ms  {'median':>10}{'p90':>10}{'max':>10}{'sum':>10}")
    for name, column in zip(("hash", "compile", "send", "load", "payload kB"), zip(*rows)):
        shown = (statistics.median(column), statistics.quantiles(column, n=10)[8], max(column), sum(column))
        print(f"{name:<15}{''.join(f'{value:>10.3f}' for value in shown)}")
    print(f"load / compile  {sum(row[3] for row in rows) / sum(row[1] for row in rows):10.3f} of their sums")


def _measure(constraint: Constraint, vocabulary: Vocabulary) -> tuple[float, float, float, float, float]:
    hashing, _ = _best(lambda: constraint_key(constraint))
    compiling, compiled = _best(lambda: compile_constraint(constraint, vocabulary))
    sending, sent = _best(lambda: msgspec.msgpack.decode(msgspec.msgpack.encode(compiled), type=Compiled))
    loading, _ = _best(lambda: load(sent, vocabulary))
    return hashing, compiling, sending, loading, len(compiled.payload) / 1000


def _best(work: Any) -> tuple[float, Any]:
    """The least milliseconds of a few tries, and what came of the last."""
    times, made = [], None
    for _ in range(TRIES):
        began = time.perf_counter()
        made = work()
        times.append(1000 * (time.perf_counter() - began))
    return min(times), made


if __name__ == "__main__":
    main()
