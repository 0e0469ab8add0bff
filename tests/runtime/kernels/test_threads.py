"""The kernels work on the threads that torch has, and on no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sapwood.runtime.kernels import build
from sapwood.runtime.kernels.bindings import KernelsMissing, Library

PROGRAM = """
import os, re, sys
import numpy as np, torch
from sapwood.runtime.kernels import bindings
from sapwood.runtime.kernels.packing import Packer

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
torch.mm(torch.ones(512, 512), torch.ones(512, 512))
torch.ones(1 << 22).exp_()
before = threads()
library = bindings.Library(bindings.library_path())
workspace = library.workspace(2)
raw = np.ones((64, 64), np.float32).view(np.uint8).reshape(-1)
matrix = Packer(library, workspace).pack("F32", raw, 64)
for _ in range(50):
    workspace.linear(matrix.struct(), np.ones((64, 64), np.float32))
    torch.ones(1 << 20).exp_()
print(before, threads())
print(*sorted(set(re.findall(r"/\\S*(?:libgomp|libomp|libiomp)\\S*", open("/proc/self/maps").read()))))
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
@pytest.mark.usefixtures("libraries")
def test_torch_and_the_kernels_share_one_openmp_runtime_and_its_threads() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    counts, runtimes = done.stdout.splitlines()
    before, after = map(int, counts.split())
    assert after == before, "the kernels started threads of their own"
    assert len(runtimes.split()) == 1, runtimes


def test_a_library_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(KernelsMissing, match="cannot be loaded"):
        Library(tmp_path / build.LIBRARY)


@pytest.mark.usefixtures("libraries")
def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    program = "from sapwood.runtime.kernels import bindings; bindings.Library(bindings.library_path())"
    environment = {"SAPWOOD_KERNEL_ISA": "sse9", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "no instruction set 'sse9'" in done.stderr


def test_building_without_a_compiler_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler \\(no-such-compiler\\)"):
        build.build(tmp_path / build.LIBRARY)
    assert not list(tmp_path.iterdir())
