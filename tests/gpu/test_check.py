"""The script that proves the GPU worker runs without mistakes of its own, and says no where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECK = Path(__file__).with_name("check.py")


def test_a_rehearsal_fills_every_section(tmp_path: Path, smollm2_path: Path) -> None:
    output = tmp_path / "report.json"
    command = [sys.executable, str(CHECK), str(output), "--rehearse", "--scale", "0.05", "--model", str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["machine"]["copy_gbs"] > 0
    for name in (
        "attention_128",
        "attention_64",
        "graphs",
        "graphs_and_flight",
        "deterministic",
        "llama_8b",
        "quantized",
        "llama_8b_int4",
    ):
        assert report[name]["ok"] is True, report[name]
    assert report["server"]["ok"] is True, report["server"]
    assert any("http://" in line for line in report["server"]["announced"])
    assert all(workload["requests"] > 0 for workload in report["server"]["workloads"].values())
    assert {"decode", "gbs", "of_copy"} <= set(report["llama_8b"]["roofline"][0])
    assert report["llama_8b"]["workloads"]["W4"]["cached_share"] > 0.3
    assert set(report["quantized"]["relative_error"]) == {"int4", "float8"}
    assert report["quantized"]["rows_are_alone"] is True
    assert report["llama_8b_int4"]["weights"] == "bfloat16+int4"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECK), str(tmp_path / "no")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "torch finds no GPU here" in done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_the_sections_on_correctness_hold_on_this_gpu(tmp_path: Path) -> None:
    """The whole script takes minutes; run it by hand for the figures."""
    code = (
        f"import sys; sys.argv[0] = {str(CHECK)!r}; sys.path.insert(0, {str(CHECK.parent)!r})\n"
        "import check, figures\n"
        "place = check.real_place()\n"
        "for found in (figures.graph_errors(place), figures.graphs_and_flight(place)):\n"
        "    assert found['ok'], found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)
