"""Vercel's AI SDK, unmodified: text, streams, tools and objects by all three of its providers (see `ai_sdk.mjs`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


def test_the_ai_sdk_speaks_to_all_endpoints(server_url: str, tmp_path: Path) -> None:
    modules, node = os.environ.get("SAPWOOD_NODE_MODULES"), shutil.which("node")
    if not modules or node is None or not Path(modules, "ai").exists():
        pytest.skip("the AI SDK is not installed; docs/clients.md says how")
    (tmp_path / "node_modules").symlink_to(Path(modules).resolve())
    script = tmp_path / "ai_sdk.mjs"
    shutil.copy(Path(__file__).with_name("ai_sdk.mjs"), script)
    done = subprocess.run([node, str(script), server_url], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"responses", "chat", "compatible"}
    for name, said in found.items():
        assert said["same"], name
        assert said["tokens"], name
        assert said["call"] == "weather", name
        assert said["result"] in ("20 degrees celsius", "20 degrees fahrenheit"), name
        assert said["object"], name
