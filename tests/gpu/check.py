"""Proves on a GPU machine what the CPU cannot, in under eight minutes; its answer is JSON.

    python tests/gpu/check.py OUTPUT.json [--model PATH] [--scale S] [--rehearse]

OUTPUT is written anew after every section, so what was measured is there even if the time runs out. --model: a small
real model (.gguf or a directory) for the server, which is left out without one. --rehearse: everything in miniature on
the CPU with FlashInfer's stand-in, to find the script's own mistakes; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
RUNTIME_TESTS = HERE.parent / "runtime"
sys.path[:0] = [str(HERE), str(RUNTIME_TESTS / "attention"), str(RUNTIME_TESTS / "quantized")]

import figures  # noqa: E402
from invariance import deterministic  # noqa: E402
from models import Place  # noqa: E402
from quantized import int4_decode, quantized_errors  # noqa: E402

from sapwood.runtime.execution.graphs import CudaCapture  # noqa: E402

BUDGET = 400  # seconds; a section is not begun after this


def real_place() -> Place:
    flashinfer = importlib.import_module("flashinfer") if importlib.util.find_spec("flashinfer") else None
    return Place(torch.device("cuda", 0), torch.bfloat16, flashinfer, CudaCapture(), rehearsal=False)


def rehearsal_place() -> Place:
    sys.modules["flashinfer"] = fake = importlib.import_module("fake_flashinfer")

    def capture(function: Callable[[], torch.Tensor]) -> Any:
        result = function()
        return result, lambda: result.copy_(function())

    return Place(torch.device("cpu"), torch.float16, fake, capture, rehearsal=True)


def machine(place: Place) -> dict[str, Any]:
    return {
        "device": "cpu" if place.rehearsal else torch.cuda.get_device_name(place.device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvcc": shutil.which("nvcc") is not None,
        "flashinfer": getattr(place.flashinfer, "__version__", "stand-in" if place.flashinfer else None),
        "python": platform.python_version(),
    }


def server(place: Place, model: str | None, scale: float) -> dict[str, Any]:
    """`sapwood serve` with a real model, under the load of `sapwood bench`."""
    if model is None:
        raise figures.Skipped("no --model")
    device = "cpu" if place.rehearsal else "cuda"
    command = [sys.executable, "-m", "sapwood", "serve", "--model", model, "--port", "0", "--device", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:  # what is being loaded, where it serves, what computes, and at last that it is
                said += line
                if "ready in" in line:
                    break
            found = re.search(r"^Sapwood .* at (http://\S+)", said, re.MULTILINE)
            if found is None:
                return {"ok": False, "said": said}
            results = asyncio.run(_load(found[1], scale))
        finally:
            process.terminate()
            process.wait(20)
    return {"announced": said.splitlines(), "workloads": results, "ok": True}


async def _load(url: str, scale: float) -> dict[str, Any]:
    import aiohttp
    import msgspec

    from sapwood.managers.cli.workloads import WORKLOADS, measure, open_target

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        target = await open_target(session, url, None)
        return {name: msgspec.to_builtins(await measure(target, name, scale)) for name in WORKLOADS}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --rehearse tries the script itself on the CPU")
    began = time.perf_counter()
    place = rehearsal_place() if arguments.rehearse else real_place()
    report: dict[str, Any] = {"rehearsal": arguments.rehearse}
    ceiling = report["machine"] = machine(place) | figures.ceilings(place)
    # FlashInfer compiles its kernels when they are first used, for each head size and pool type; that takes up to a
    # minute. So the ones that most sections need come first, and the others last.
    sections: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("attention_128", lambda: figures.attention_errors(place, 128, place.dtype)),
        ("attention_64", lambda: figures.attention_errors(place, 64, place.dtype)),
        ("graphs", lambda: figures.graph_errors(place)),
        ("graphs_and_flight", lambda: figures.graphs_and_flight(place)),
        ("deterministic", lambda: deterministic(place)),
        ("shared_prefix", lambda: figures.shared_prefix_attention(place)),
        ("llama_8b", lambda: figures.roofline_and_workloads(place, ceiling, arguments.scale)),
        ("quantized", lambda: quantized_errors(place)),
        ("llama_8b_int4", lambda: int4_decode(place, ceiling)),
        ("server", lambda: server(place, arguments.model, arguments.scale)),
        ("attention_128_eight_bit", lambda: figures.attention_errors(place, 128, torch.float8_e4m3fn)),
        ("attention_256", lambda: figures.attention_errors(place, 256, place.dtype)),
        ("attention_128_window", lambda: figures.attention_errors(place, 128, place.dtype, window=200)),
        ("attention_256_window_cap", lambda: figures.attention_errors(place, 256, place.dtype, window=200, cap=5.0)),
    ]
    for name, section in sections:
        report[name] = _outcome(section, began)
        report["seconds"] = round(time.perf_counter() - began, 1)
        arguments.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
        print(name, json.dumps(report[name]), flush=True)
        place.forget()
    failed = [name for name, _ in sections if report[name].get("ok") is False or "error" in report[name]]
    print("failed:", ", ".join(failed) or "nothing")
    return 1 if failed else 0


def _outcome(section: Callable[[], dict[str, Any]], began: float) -> dict[str, Any]:
    started = time.perf_counter()
    if started - began > BUDGET:
        return {"skipped": "the time was up"}
    try:
        found = section()
    except figures.Skipped as error:
        return {"skipped": str(error)}
    except Exception as error:  # whatever it is, the other sections are still worth measuring
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
    return found | {"seconds": round(time.perf_counter() - started, 1)}


if __name__ == "__main__":
    sys.exit(main())
