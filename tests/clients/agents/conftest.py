"""One server for all agents, with a model whose context their prompts fit into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import running_server
from ..long_context_model import write_long_context_model


@pytest.fixture(scope="session")
def agent_url(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = os.environ.get("SAPWOOD_AGENTS_URL")
    if running:
        yield running.rstrip("/")
        return
    folder = tmp_path_factory.mktemp("agents")
    model = write_long_context_model(smollm2_path, folder / "agent-model.gguf")
    with running_server(folder, "--model", str(model), "--kv-tokens", "196608", "--threads", "1") as url:
        yield url
