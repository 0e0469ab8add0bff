"""No code runs on a machine that lacks something which its compiler was allowed to use."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.build import AVX2, AVX512, X86

IMPLIED = ["popcnt"]  # by -mavx2
CPUINFO = Path("/proc/cpuinfo")

pytestmark = pytest.mark.skipif(platform.machine() not in X86, reason="the instruction sets of x86-64")


def features_of(flags: list[str]) -> list[str]:
    """What code built with such flags of a compiler may use."""
    assert all(flag.startswith("-m") for flag in flags)
    return [flag.removeprefix("-m") for flag in flags] + IMPLIED


@pytest.mark.parametrize(("isa", "flags", "next_best"), [("avx2", AVX2, "portable"), ("avx512", AVX512, "avx2")])
def test_every_feature_that_is_used_is_looked_for(library: Library, isa: str, flags: list[str], next_best: str) -> None:
    features = features_of(flags)
    assert library.isa_for(["sse2", *features, "xsave"]) == isa
    for missing in features:
        rest = [feature for feature in features if feature != missing]
        expected = next_best if missing not in features_of(AVX2) else "portable"
        assert library.isa_for(rest) == expected, f"{missing} is used by {isa}"
        assert library.isa_for([*rest, f"{missing}x", f"x{missing}"]) == expected


def test_nothing_is_needed_for_plain_code(library: Library) -> None:
    assert library.isa_for([]) == "portable"


@pytest.mark.skipif(not CPUINFO.exists(), reason="Linux says there what a machine has")
def test_a_machine_is_found_to_have_what_linux_says(library: Library) -> None:
    line = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    expected = os.environ.get("SAPWOOD_KERNEL_ISA") or library.isa_for(line.partition(":")[2].split())
    assert library.isa == expected
