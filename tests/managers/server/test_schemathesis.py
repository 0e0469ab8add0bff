"""schemathesis, where it is installed, over the OpenAPI document of a real server: no 5xx, no undocumented answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.slow
def test_no_answer_is_undocumented(server_url: str, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server_url}/openapi.json", "--url", server_url]
    options = ["--checks", CHECKS, "-n", "3", "--phases", "fuzzing", "--seed", "1", "--generation-database", "none"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
