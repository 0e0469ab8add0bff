"""The served process as a whole (R34): how it ends, whatever ends it, and that it can start again at once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapwood.managers.server.serving import bind

START_SECONDS, STOP_SECONDS = 60.0, 5.0


@pytest.fixture(scope="module")
def port() -> int:
    """One port for all runs here: each must be able to take it straight after the one before."""
    with bind("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


@contextmanager
def served(port: int, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`sapwood serve`, ready; killed at the end if it is still there."""
    command = [sys.executable, "-m", "sapwood", "serve", "--port", str(port), "--kv-tokens", "2048", "--threads", "1"]
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not re.search(r"^  try ", output.read_text(), re.MULTILINE):
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def post(port: int, path: str, **body: Any) -> HTTPResponse:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=30)


def two_streams(port: int) -> list[HTTPResponse]:
    """Two long streams that have both begun."""
    return [post(port, "/v1/completions", prompt=p, max_tokens=1500, ignore_eos=True, stream=True) for p in "ab"]


def last_error(stream: HTTPResponse) -> dict[str, Any]:
    """The error that a stream ended with."""
    last = stream.read().decode().removesuffix("\n\n").rpartition("data: ")[2]
    return json.loads(last)["error"]


def gone(children: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(children, timeout=STOP_SECONDS)[1]


@pytest.mark.alone
def test_sigterm_ends_everything_in_order(port, tmp_path):  # SIGINT has the same handler: see test_run
    with served(port, tmp_path / "output") as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        listening = [c for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        own = [c.laddr for c in listening if c.pid in (process.pid, *(child.pid for child in children))]
        assert [tuple(address) for address in own] == [("127.0.0.1", port)], "only the HTTP port may be open"
        streams = two_streams(port)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert [last_error(stream)["code"] for stream in streams] == ["shutting_down"] * 2
        assert process.wait(STOP_SECONDS) == 0
        assert time.monotonic() - began < STOP_SECONDS
        assert gone(children)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    assert "Traceback" not in (tmp_path / "output").read_text()


def test_a_dead_worker_fails_its_streams_and_ends_the_server_with_code_1(port, tmp_path):
    with served(port, tmp_path / "output") as process:
        children = psutil.Process(process.pid).children(recursive=True)
        streams = two_streams(port)
        [worker] = [child for child in children if "sapwood.managers.worker" in child.cmdline()]
        os.kill(worker.pid, signal.SIGKILL)
        errors = [last_error(stream) for stream in streams]
        assert {error["code"] for error in errors} == {"engine_dead"}
        assert "SIGKILL" in errors[0]["message"]
        assert process.wait(STOP_SECONDS) == 1
        assert gone(children)
    assert "SIGKILL" in (tmp_path / "output").read_text()


def test_children_end_with_a_parent_that_was_killed(port, tmp_path):
    with served(port, tmp_path / "output") as process:
        children = psutil.Process(process.pid).children(recursive=True)
        two_streams(port)
        process.kill()
        process.wait()
        assert gone(children)
        bind("127.0.0.1", port).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_server_is_still_imported_ends_it_with_code_0(number):
    """The signal is sent from within, by what the command imports first."""
    code = f"""
import os, sys, sapwood.__main__

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "aiohttp":
            os.kill(os.getpid(), {int(number)})

sys.meta_path.insert(0, Finder())
sys.exit(sapwood.__main__.main(["serve", "--port", "0", "--model", "no-such-model"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
