"""Shared by all tests: the real model, and one real server that runs it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapwood.runtime.weights import hub

START_SECONDS = 60.0


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, fetched on first use."""
    return hub.resolve("smollm2")


@pytest.fixture(scope="session")
def server_url(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `sapwood serve` with SmolLM2, ready: a context of 1,024 tokens and a KV pool of 8,192."""
    output = tmp_path_factory.mktemp("server") / "stdout"
    options = ["--max-context", "1024", "--kv-tokens", "8192", "--log-level", "warning"]
    options += ["--threads", "1"]  # with more, threads that spin on a busy machine make a step up to ten times slower
    command = [sys.executable, "-m", "sapwood", "serve", "--port", "0", *options]
    with output.open("w") as stdout, subprocess.Popen(command, stdout=stdout) as process:
        try:
            yield _ready_address(process, output)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(10)
    assert code == 0, "the server must end cleanly on SIGTERM"


def _ready_address(process: subprocess.Popen[bytes], output: Path) -> str:
    """The address in the server's announcement. Fails where the server ends or takes too long instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"^Sapwood .* serves smollm2 at (http://\S+)$", output.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
        time.sleep(0.1)
    pytest.fail(f"the server did not become ready (exit code {process.poll()}); it said: {output.read_text()}")
