"""Which device computes. This module must not import torch: the front asks it before anything is loaded."""

from __future__ import annotations

import ctypes

from .errors import UnsupportedModel

DEVICES = ("auto", "cpu", "cuda")
_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def require_gpu() -> None:
    """Raises UnsupportedModel with a sentence for the user where NVIDIA's driver has no GPU for this process."""
    reason = _why_no_gpu()
    if reason:
        raise UnsupportedModel(
            f"device cuda cannot be used: {reason}. Use device cpu, or auto, which takes a GPU where there is one."
        )


def _why_no_gpu() -> str:
    for name in _DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        code = driver.cuInit(0)
        if code:
            return f"NVIDIA's driver finds no usable GPU here (cuInit gave {code}; CUDA_VISIBLE_DEVICES may hide it)"
        count = ctypes.c_int()
        code = driver.cuDeviceGetCount(ctypes.byref(count))
        return "" if not code and count.value else "NVIDIA's driver has no GPU for this process"
    return "NVIDIA's driver is not installed on this machine"
