"""One server for all clients: Sapwood as it starts by default, with the bundled model, or one that runs already.

`SAPWOOD_CLIENTS_URL=http://127.0.0.1:8000` names a running one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 120.0

# No client may ask the network, or this machine's settings, for anything.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"


@contextmanager
def running_server(folder: Path, *options: str) -> Iterator[str]:
    """The address of `sapwood serve` with these options, ready; it ends with code 0 or the test fails."""
    output = folder / "stdout"
    command = [sys.executable, "-m", "sapwood", "serve", "--port", "0", "--log-level", "info", *options]
    with output.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield _address(process, output)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(20)
    assert code == 0, f"the server must end cleanly on SIGTERM; it said: {output.read_text()[-2000:]}"


def _address(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"^Sapwood .* serves \S+ at (http://\S+)$", output.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
        time.sleep(0.1)
    pytest.fail(f"the server did not become ready (exit code {process.poll()}); it said: {output.read_text()}")


@pytest.fixture(scope="session")
def server_url(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with SmolLM2 and its whole context of 8,192 tokens."""
    running = os.environ.get("SAPWOOD_CLIENTS_URL")
    if running:
        yield running.rstrip("/")
        return
    with running_server(tmp_path_factory.mktemp("server"), "--kv-tokens", "32768", "--threads", "1") as url:
        yield url
