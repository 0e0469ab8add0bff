"""The examples that need a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_structured_output_prints_an_object_and_a_call(server_url: str) -> None:
    command = [sys.executable, str(EXAMPLES / "structured_output.py"), server_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parsed, *calls = done.stdout.splitlines()
    opinion = r"Opinion\(film='.{0,30}', sentiment='(positive|negative)', stars=[1-5]\)"
    assert re.fullmatch(opinion, parsed)
    assert calls
    assert all(re.fullmatch(f"store {opinion}", call) for call in calls)
