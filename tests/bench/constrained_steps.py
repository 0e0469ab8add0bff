"""Whether a constrained row makes a step longer: 16 JSON strings beside 16 free texts, by turns, without speculation.

python tests/bench/constrained_steps.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from sapwood import Engine

ROWS, TOKENS = 16, 96
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "minLength": 900}}, "required": ["text"]}
KINDS: dict[str, dict[str, Any]] = {"free": {"ignore_eos": True}, "constrained": {"json_schema": SCHEMA}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with Engine("smollm2", kv_tokens=16384, max_context=2048, speculation=False) as engine:
        engine.generate("A first document: ", json_schema=SCHEMA, max_tokens=4)  # loads what grammars need
        for number in range(rounds):
            for kind, fields in KINDS.items():
                before = engine.stats()
                prompts = [f"Story {number} {row}: " for row in range(ROWS)]
                engine.generate(prompts, max_tokens=TOKENS, temperature=0.8, seed=1, **fields)
                after = engine.stats()
                times[kind].append((after.step_seconds - before.step_seconds) / (after.steps - before.steps))
    free, constrained = (1000 * statistics.median(times[kind]) for kind in KINDS)
    print(
        f"a step of {ROWS} rows: free {free:.1f} ms, constrained {constrained:.1f} ms (ratio {constrained / free:.2f})"
    )


if __name__ == "__main__":
    main()
