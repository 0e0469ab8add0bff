"""Compiles the kernel library with the system's C++ compiler. It must not import anything but the standard library.

The result needs no library of this project or of torch: the threads are handed to it at run time.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY = "libsapwood_kernels.so"
FOLDER = Path(__file__).parent / "src"
FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno",
    "-ffp-contract=off",  # a fused multiply-add only where the source says so: the bits depend on it
    "-Wall", "-Wextra",
]  # fmt: skip
X86 = ("x86_64", "AMD64")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
X86_FLAGS = {
    "isa/avx2.cpp": AVX2,
    "isa/avx512.cpp": [*AVX512, "-Wno-uninitialized", "-Wno-maybe-uninitialized"],  # GCC 12 warns of its own header
}
SOURCES = {
    "isa/avx512.cpp": [],
    "isa/avx2.cpp": [],
    "isa/neon.cpp": [],
    "isa/portable.cpp": ["-O2"],  # no one waits for these kernels, but everyone for their compilation
    "forward/forward.cpp": [],
    "sampling/choose.cpp": [],
    "linear/pack.cpp": [],
    "attention/work.cpp": [],
    "attention/plan.cpp": [],
    "isa/dispatch.cpp": [],
}


class BuildError(Exception):
    """There is no compiler, or it failed; the message says which."""


def find_compiler() -> str:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++ there is. Raises BuildError."""
    named = os.environ.get("CXX")
    for candidate in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise BuildError(f"there is no C++ compiler ({named or 'c++, g++ or clang++'})")


def build(target: Path) -> Path:
    """Compiles the sources to the library `target`, which is replaced as a whole. Raises BuildError."""
    compiler = find_compiler()
    x86_flags = X86_FLAGS if platform.machine() in X86 else {}
    with tempfile.TemporaryDirectory() as scratch:
        objects = [Path(scratch, name.replace("/", "_")).with_suffix(".o") for name in SOURCES]

        def compile_one(name: str, output: Path) -> None:
            flags = [*FLAGS, *SOURCES[name], *x86_flags.get(name, [])]
            _run([compiler, *flags, f"-I{FOLDER}", "-c", str(FOLDER / name), "-o", str(output)])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        linked = Path(scratch, LIBRARY)
        _run([compiler, "-shared", "-o", str(linked), *map(str, objects)])
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(f".{os.getpid()}")
        shutil.copy(linked, beside)
        beside.replace(target)  # whoever loads it at the same time sees the old one or the new one
    return target


def is_current(target: Path) -> bool:
    """Whether the library `target` is there and no older than its sources and this file."""
    files = [path for path in FOLDER.rglob("*") if path.is_file()] + [Path(__file__)]
    return target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in files)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise BuildError(f"{command[0]} failed with code {done.returncode}:\n{last}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


if __name__ == "__main__":
    print(build(Path(__file__).with_name(LIBRARY)))
