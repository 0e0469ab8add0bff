"""A plugin of pytest, for llama.cpp's own server tests: where they start `llama-server`, Sapwood starts instead.

The tests' flags become Sapwood's. Servers of the same flags are started once. The tests' models cannot be fetched where
there is no network: all run on the bundled model, and what they expect a model to write is not compared. Outcomes go to
the file that `SAPWOOD_LLAMA_REPORT` names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 120.0
MOST_SERVERS = 3
NEEDED = {  # options of theirs without a counterpart; a server that must have them is not started
    "server_embeddings": "embeddings",
    "server_reranking": "reranking",
    "lora_files": "LoRA adapters",
    "mmproj_url": "images",
    "media_path": "images",
    "models_dir": "several models",
    "server_tools": "tools that the server runs",
    "ui_mcp_proxy": "a proxy for web pages",
}
_servers: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], int]] = {}
_outcomes: dict[str, str] = {}

sys.modules.setdefault("wget", types.ModuleType("wget"))  # they fetch models with it


def flags_of(server: Any) -> list[str]:
    """Sapwood's flags for what a `ServerProcess` of theirs would start with."""
    for name, what in NEEDED.items():
        if getattr(server, name, None):
            raise RuntimeError(f"Sapwood has no {what}")
    flags = ["--threads", "1", "--kv-tokens", "16384", "--log-level", "warning"]
    if server.model_alias:
        flags += ["--served-model-name", str(server.model_alias)]
    if server.n_ctx:
        flags += ["--max-context", str(server.n_ctx // (server.n_slots or 1))]
    if server.api_key:
        flags += ["--api-key", str(server.api_key)]
    if server.chat_template_file:
        flags += ["--chat-template", str(server.chat_template_file)]
    if server.cors_origins:
        if "://" not in server.cors_origins:
            raise RuntimeError("Sapwood has no word for several origins: each is named")
        flags += ["--cors-origin", str(server.cors_origins)]
    return flags


def start(server: Any, timeout_seconds: float = START_SECONDS) -> None:
    """In place of `ServerProcess.start`."""
    flags = tuple(flags_of(server))
    if flags not in _servers or _servers[flags][0].poll() is not None:
        while len(_servers) >= MOST_SERVERS:
            end(next(iter(_servers)))
        _servers[flags] = _started(flags, timeout_seconds)
    server.server_port = _servers[flags][1]
    server.ready = True


def end(flags: tuple[str, ...]) -> None:
    process, _ = _servers.pop(flags)
    process.terminate()
    process.wait(20)


def _started(flags: tuple[str, ...], seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    output = Path(tempfile.mkdtemp(), "stdout")
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sapwood", "serve", "--port", "0", *flags], stdout=log, stderr=log
        )
    deadline = time.monotonic() + max(seconds, START_SECONDS)
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"^Sapwood .* serves .* at http://\S+:(\d+)$", output.read_text(), re.MULTILINE)
        if found:
            return process, int(found[1])
        time.sleep(0.1)
    process.kill()
    process.wait()
    raise RuntimeError(f"Sapwood did not start: {output.read_text()[-500:]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    modules: set[Any] = {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        module.match_regex = lambda regex, text: isinstance(text, str)  # what a model writes is not compared
    if "utils" not in sys.modules:
        return
    utils: Any = sys.modules["utils"]
    utils.ServerProcess.start = start
    utils.ServerProcess.stop = lambda self: utils.server_instances.discard(self)
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.partition("unit/")[2]
    if report.failed:
        _outcomes[name] = " ".join(line for line in str(report.longrepr).splitlines() if line.startswith("E "))
    elif report.skipped:
        _outcomes.setdefault(name, "skipped")
    elif report.when == "call":
        _outcomes.setdefault(name, "passed")


def pytest_sessionfinish() -> None:
    for flags in list(_servers):
        end(flags)
    report = os.environ.get("SAPWOOD_LLAMA_REPORT")
    if report:
        Path(report).write_text(json.dumps(_outcomes, indent=1))
