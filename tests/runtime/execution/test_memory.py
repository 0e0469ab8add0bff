"""How much memory the worker takes at most, with its KV pool full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sapwood.runtime.execution.kv_pool import available_memory

KV_TOKENS = 32_768
ALLOWANCE = 400e6  # for Python, torch and everything that is neither weights nor KV
NEEDED = 3e9

# A worker's imports, its model, its largest step, logits of 64 rows, and every slot written. Numbers go to stdout.
WORKER = """
import resource, sys
import numpy as np, torch
import sapwood.managers.worker.process
from sapwood.runtime.execution.loading import load_executor
from sapwood.runtime.options import ExecutorOptions
from sapwood.runtime.execution.runner import ModelStep

options = ExecutorOptions(device="cpu", kv_tokens=int(sys.argv[2]))
executor = load_executor(sys.argv[1], options)
runner, pool = executor.runner, executor.pool
chunk, context = 256, 4096
slots = np.arange(context, dtype=np.int32)
for layer in range(runner.config.layers):
    for tensor in pool.layer(layer):
        tensor.zero_()
step = ModelStep(
    token_ids=np.zeros(chunk, np.int32),
    positions=slots[-chunk:],
    slots=slots[-chunk:],
    qo_indptr=np.array([0, chunk], np.int32),
    kv_indptr=np.array([0, context], np.int32),
    kv_indices=slots,
    output_rows=np.arange(64, dtype=np.int32),
)
with torch.inference_mode():
    runner.logits(runner.forward(step))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))  # ru_maxrss is the parent's, too
print(int(peak.split()[1]) * 1024, runner.weight_bytes, pool.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worker_takes_little_more_than_its_weights_and_its_full_pool(smollm2_path: Path) -> None:
    if available_memory() < NEEDED:
        pytest.skip(f"needs {NEEDED / 1e9:.0f} GB of memory")
    command = [sys.executable, "-c", WORKER, str(smollm2_path), str(KV_TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, weights, pool = map(int, done.stdout.split())
    print(f"peak {peak / 1e6:.0f} MB; weights {weights / 1e6:.0f} MB, KV pool {pool / 1e6:.0f} MB")
    assert pool == KV_TOKENS * 46_080
    assert peak > weights + pool, "the pool was not full"
    assert peak < 1.2 * (weights + pool) + ALLOWANCE
