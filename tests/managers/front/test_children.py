"""What children are started with."""

from __future__ import annotations

import os
import site
import subprocess
import sys

import pytest

from sapwood.managers.front import supervisor
from sapwood.managers.front.supervisor import CHILDREN, Supervisor
from sapwood.managers.wire.sockets import Link


def test_only_the_worker_gets_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads(role: str, given: int) -> str | None:
        return Supervisor(Link({}, b"", None), threads=given)._environment(role).get("OMP_NUM_THREADS")

    assert [threads(role, 3) for role in CHILDREN] == ["1", "1", "3"]
    assert threads("worker", 0) is None


def test_threads_do_not_spin_long_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin_count() -> str | None:
        return Supervisor(Link({}, b"", None), threads=0)._environment("worker").get("GOMP_SPINCOUNT")

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert spin_count() == "1000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert spin_count() == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert spin_count() is None


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("/somewhere/sapwood", f"/mine{os.pathsep}/somewhere"),
        ("/checkout/of/another/name", "/mine"),
        (f"{site.getsitepackages()[0]}/sapwood", "/mine"),
    ],
)
def test_children_find_a_package_that_only_sys_path_knows(
    monkeypatch: pytest.MonkeyPatch, package: str, expected: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(supervisor, "__file__", f"{package}/managers/front/supervisor.py")
    assert Supervisor(Link({}, b"", None), threads=0)._environment("worker")["PYTHONPATH"] == expected


def test_a_child_started_by_hand_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sapwood.managers.tokenizer"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert "sapwood serve" in done.stderr


@pytest.mark.parametrize(
    "module", ["tokenizer.process", "scheduler.process", "front.front", "front.engine", "front.supervisor"]
)
def test_only_the_worker_needs_torch(module: str) -> None:
    code = f"import sys, sapwood.managers.{module}; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
