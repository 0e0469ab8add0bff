"""A loose guard on what the tree costs. The exact figures, beside their floors: `python tests/bench/radix_bench.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

NODES = 100_000


@pytest.mark.alone
def test_the_costs_stay_small_in_a_tree_of_100_000_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[1] / "bench" / "radix_bench.py"
    spec = importlib.util.spec_from_file_location("radix_bench", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, bench)  # its dataclasses look their module up
    spec.loader.exec_module(bench)

    figures = bench.measure(NODES)
    report = "\n".join(map(str, figures))
    # On a busy machine the floor rises along with the figure, so either bound will do.
    for name, microseconds, ratio in [
        ("match + insert 2,000 tokens", 200, 50),
        ("evict one leaf", 20, 15),
        ("peek 1,000 tokens", 20, 5),
    ]:
        chosen = [figure for figure in figures if figure.name.startswith(name)]
        assert chosen
        for figure in chosen:
            assert figure.seconds < max(microseconds * 1e-6, ratio * figure.floor), report
