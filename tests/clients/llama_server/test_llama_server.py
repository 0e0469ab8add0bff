"""llama.cpp's own tests of its server (chat, Responses, Anthropic, tool calls, security) against Sapwood.

Their source is in the sdist of llama-cpp-python, under `vendor/llama.cpp/tools/server/tests`: `SAPWOOD_LLAMA_TESTS` is
that folder. Each one that fails is explained by a stated difference (`differences.py`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .differences import DIFFERENCES, UNTRIED

FILES = ("security", "compat_oai_responses", "compat_anthropic", "chat_completion", "tool_call")
LEAST_PASSED = 50


def explained(name: str, failure: str) -> bool:
    return any(re.search(pattern, f"{name} {failure}") for pattern, _ in DIFFERENCES)


@pytest.mark.timeout(1800)
def test_every_failure_is_a_stated_difference(smollm2_path: Path, tmp_path: Path) -> None:
    folder = os.environ.get("SAPWOOD_LLAMA_TESTS")
    if not folder:
        pytest.skip("SAPWOOD_LLAMA_TESTS does not name llama.cpp's tests")
    report = tmp_path / "report.json"
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "SAPWOOD_LLAMA_REPORT": str(report)}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-k", UNTRIED, *(f"unit/test_{name}.py" for name in FILES)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1700)
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    outcomes: dict[str, str] = json.loads(report.read_text())
    failed = {name: said for name, said in outcomes.items() if said not in ("passed", "skipped")}
    assert {name: said for name, said in failed.items() if not explained(name, said)} == {}
    assert sum(said == "passed" for said in outcomes.values()) >= LEAST_PASSED, "it has tried most of them"
