"""Rows as a GGUF file stores them, and the oracle for what they mean."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

HALVES = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}


def stored_rows(type_name: str, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of random codes under random, finite scales: uint8 [n, bytes]."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    raw = rng.integers(0, 256, (n, k // elements, size), dtype=np.uint8)
    if type_name.startswith("Q"):
        for place in HALVES.get(type_name, (0,)):
            halves = rng.normal(0, 0.02, raw.shape[:2]).astype(np.float16)
            raw[:, :, place : place + 2] = halves[..., None].view(np.uint8)
    elif type_name == "F32":
        return rng.normal(size=(n, k)).astype(np.float32).view(np.uint8)
    else:
        wide = rng.normal(size=(n, k)).astype(np.float32)
        narrow = wide.astype(np.float16) if type_name == "F16" else (wide.view(np.uint32) >> 16).astype(np.uint16)
        return narrow.view(np.uint8)
    return raw.reshape(n, -1)


def dequantized(type_name: str, rows: np.ndarray) -> np.ndarray:
    """The oracle's float32 [n, k]."""
    if type_name == "F32":
        return rows.view(np.float32)
    return dequantize(rows, GGMLQuantizationType[type_name])
