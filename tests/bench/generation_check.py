"""Generates under real schemas at temperature 1 and lets jsonschema judge every finished document.

python tests/bench/generation_check.py FOLDER [--schemas 100] [--each 5] [--max-tokens 256]

FOLDER holds `.jsonl` files of `{"id", "schema", …}`. Exit status 1 where a finished document is not valid.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from sapwood import Engine
from sapwood.managers.front.generation import Generation
from sapwood.managers.wire.errors import InvalidRequest

PROMPT = "Write a realistic example of a JSON document for this schema.\n{schema}\nJSON: "


def schemas_of(folder: Path, count: int) -> list[dict[str, Any]]:
    """`count` of the schemas, drawn with a fixed seed."""
    cases = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    return random.Random(0).sample(cases, min(count, len(cases)))


def fault(schema: Any, text: str) -> str:
    """Why a finished document is not valid; "" where it is."""
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        document = json.loads(text)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=256)
    options = parser.parse_args()
    ends: Counter[str] = Counter()
    tokens = passes = 0
    with Engine("smollm2", max_context=4096, kv_tokens=32768) as engine:
        started = time.perf_counter()

        def generate(case: dict[str, Any]) -> Generation | InvalidRequest:
            text = json.dumps(case["schema"])
            fields: dict[str, Any] = {"max_tokens": options.max_tokens, "temperature": 1, "seed": 0, "n": options.each}
            try:
                return engine.generate(PROMPT.format(schema=text[:2000]), json_schema=text, **fields)
            except InvalidRequest as error:
                return error

        cases = schemas_of(options.folder, options.schemas)
        for case, answer in zip(cases, ThreadPoolExecutor(8).map(generate, cases), strict=True):
            if isinstance(answer, InvalidRequest):
                ends["refused or given up"] += options.each
                print(f"{case['id']}: {answer}")
                continue
            for completion in answer.completions:
                ends[completion.finish_reason] += 1
                tokens += len(completion.token_ids)
                passes += completion.effort.forward_passes if completion.effort is not None else 0
                if re.search(r"\s{8}", re.sub(r'"(?:[^"\\]|\\.)*"?', '""', completion.text)):
                    ends["loops on whitespace"] += 1
                if completion.finish_reason == "stop" and (reason := fault(case["schema"], completion.text)):
                    ends["INVALID"] += 1
                    print(f"{case['id']}: {reason}: {completion.text[:200]}")
        seconds = time.perf_counter() - started
    print(", ".join(f"{count} {end}" for end, count in ends.most_common()))
    print(f"{tokens} tokens in {passes} passes ({passes / max(tokens, 1):.2f} a token), {seconds:.0f} s")
    return 1 if ends["INVALID"] or ends["loops on whitespace"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
