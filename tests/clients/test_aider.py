"""aider, unmodified: it asks by litellm, streams, and goes on with whatever the model says.

It pins all its dependencies, so it lives in an environment of its own; `SAPWOOD_AIDER` names its program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_aider_asks_once_and_ends(server_url: str, tmp_path: Path, stream: str) -> None:
    aider = os.environ.get("SAPWOOD_AIDER") or shutil.which("aider")
    if not aider:
        pytest.skip("aider is not installed; docs/clients.md says how")
    (tmp_path / "hello.py").write_text("print('hello')\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OPENAI_API_BASE": f"{server_url}/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    quiet = ["--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
    command = [aider, "--model", "openai/smollm2", *quiet, "--no-pretty", "--no-detect-urls", stream]
    command += ["--chat-mode", "ask", "--message", "What does this program print?", "hello.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tokens:" in done.stdout, done.stdout + done.stderr
    assert "litellm." not in done.stdout, done.stdout
