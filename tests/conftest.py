"""Shared by all tests: the real model, one real server that runs it, and which tests run when.

Marks: `fast` is given to whatever lies in `FAST` (what needs no process and no real model: under a minute); `slow`
means a longer repetition of what another test shows; `slow_with("torch")` the same for one parameter of a test; `alone`
is for tests that measure time: no other test runs meanwhile, also where several run at once.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sapwood.runtime.weights import hub

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the cores: threads of each would wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")

START_SECONDS = 60.0
HERE = Path(__file__).parent
FAST = [
    HERE / path
    for path in (
        "constrained/schema",
        "constrained/grammar/test_patterns.py",
        "managers/front/test_constraints.py",
        "managers/front/test_params.py",
        "managers/scheduler",
        "managers/tokenizer/grammars/test_queue.py",
        "managers/tokenizer/test_cache_report.py",
        "managers/wire",
        "radix",
        "runtime/model/test_read_config.py",
        "runtime/model/test_shard.py",
        "runtime/text/chat/test_tool_calls.py",
        "runtime/text/chat/test_tool_formats.py",
        "runtime/text/test_detokenizer.py",
    )
]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast` nothing else is even imported: collecting all tests takes longer than running these."""
    if config.option.markexpr != "fast" or not collection_path.is_file():
        return None
    return None if _is_fast(collection_path) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        values = getattr(item, "callspec").params.values() if hasattr(item, "callspec") else ()  # noqa: B009
        if any(value in mark.args for mark in item.iter_markers("slow_with") for value in values):
            item.add_marker("slow")
        if _is_fast(item.path) and not any(item.iter_markers("slow")) and not any(item.iter_markers("alone")):
            item.add_marker("fast")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where several processes run tests, one that is marked `alone` waits for the others' tests, and they for it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    place = Path(tempfile.gettempdir(), f"sapwood-tests-{run}")
    with open(f"{place}.door", "w") as door, open(f"{place}.room", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who wants to be alone keeps the door until the room is empty
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


def _is_fast(path: Path) -> bool:
    return any(path.is_relative_to(each) for each in FAST)


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
