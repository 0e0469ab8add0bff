"""What a constrained completion costs a worker, beside a floor from the same run.

    python tests/bench/mask_bench.py FOLDER [MODEL]

FOLDER holds .jsonl files, a schema a line: {"id", "schema", "tests": [{"valid", "data"}]}. Every schema is compiled as
the server does it, and completions are driven in two ways: by the tokenizer's own tokens of the valid documents, and by
tokens drawn at random from what the masks allow. The floor is a mask where any text is allowed, from the same engine.
Times are the calling thread's own, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.matching.constraint_loader import ConstraintLoader, LoadedConstraint
from sapwood.constrained.matching.interface import TokenConstraint
from sapwood.constrained.spec import Constraint, ConstraintError
from sapwood.constrained.vocabulary import Vocabulary, vocabulary_of
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.weights import hub

MAX_TOKENS = 256
WALKS = 2  # random completions for every schema


@dataclass
class Costs:
    """Seconds of every call, and what the completions took."""

    fill: list[float] = field(default_factory=list)
    advance: list[float] = field(default_factory=list)
    tokens: int = 0
    completions: int = 0

    def lines(self, name: str, floor: float) -> Iterator[str]:
        passes = len(self.advance)
        share = passes / self.tokens
        yield f"{name}: {self.completions} completions, {self.tokens} tokens in {passes} passes ({share:.2f} a token)"
        for what, seconds in (("fill", self.fill), ("advance", self.advance)):
            median, high, most = (np.quantile(seconds, q) * 1e6 for q in (0.5, 0.99, 1.0))
            line = f"  {what:<8} median {median:7.1f} us   99% {high:7.1f} us   max {most:8.1f} us"
            yield f"{line}   median / floor {median / 1e6 / floor:5.2f}"


def drive(
    completion: TokenConstraint,
    vocabulary: Vocabulary,
    costs: Costs,
    wanted: list[int] | None,
    rng: random.Random,
) -> None:
    """One completion: `wanted` wherever there is a choice, or else any token that the mask allows."""
    row = np.zeros(vocabulary.words, np.int32)
    taken: list[int] = []
    while len(taken) < (MAX_TOKENS if wanted is None else len(wanted)):
        started = time.thread_time()
        completion.fill(row)
        filled = time.thread_time()
        costs.fill.append(filled - started)
        token_id = wanted[len(taken)] if wanted is not None else draw(row, rng)
        if not row[token_id // 32] >> token_id % 32 & 1:
            return  # the constraint has another order of properties than the document
        started = time.thread_time()
        edit = completion.advance(token_id)
        costs.advance.append(time.thread_time() - started)
        del taken[len(taken) - edit.rewind :]
        taken += edit.token_ids
        if edit.complete or edit.failure:
            break
    costs.tokens += len(taken)
    costs.completions += 1


def draw(row: np.ndarray, rng: random.Random) -> int:
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return int(allowed[rng.randrange(len(allowed))])


def floor(loader: ConstraintLoader, vocabulary: Vocabulary) -> float:
    """The median seconds of a mask that allows any text."""
    completion = loader.load(compile_constraint(Constraint("regex", r"(.|\n)*"), vocabulary)).start()
    costs = Costs()
    drive(
        completion, vocabulary, costs, vocabulary.encode("Any text will do, and this is one. " * 20), random.Random(0)
    )
    return float(np.median(costs.fill))


def load_all(
    folder: Path, loader: ConstraintLoader, vocabulary: Vocabulary
) -> Iterator[tuple[LoadedConstraint, list[Any]]]:
    """The templates of all schemas that are not refused, each with its valid documents."""
    loads: list[float] = []
    refused = 0
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            try:
                compiled = compile_constraint(
                    Constraint("json_schema", json.dumps(case["schema"]), extra_properties=True), vocabulary
                )
            except ConstraintError:
                refused += 1
                continue
            started = time.thread_time()
            template = loader.load(compiled)
            loads.append(time.thread_time() - started)
            yield template, [test["data"] for test in case["tests"] if test["valid"]]
    median, high = (np.quantile(loads, q) * 1e3 for q in (0.5, 0.9))
    print(f"load: median {median:.2f} ms, 90% {high:.2f} ms ({len(loads)} schemas, {refused} refused)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2")
    options = parser.parse_args()
    vocabulary = vocabulary_of(load_tokenizer(hub.resolve(options.model)))
    loader = ConstraintLoader(vocabulary)
    documents, walks = Costs(), Costs()
    rng = random.Random(0)
    for template, values in load_all(options.folder, loader, vocabulary):
        for value in values:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            drive(template.start(), vocabulary, documents, vocabulary.encode(text)[:MAX_TOKENS], rng)
        for _ in range(WALKS):
            drive(template.start(), vocabulary, walks, None, rng)
    least = floor(loader, vocabulary)
    print(f"floor: {least * 1e6:.1f} us")
    for name, costs in (("documents", documents), ("random tokens", walks)):
        print("\n".join(costs.lines(name, least)))


if __name__ == "__main__":
    main()
