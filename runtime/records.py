"""What the records of a step are made of: their base class, and arrays packed as bytes. Torch-free."""

from __future__ import annotations

import msgspec
import numpy as np


def pack_ids(ids: np.ndarray | list[int]) -> bytes:
    """Token ids, slots or lengths as little-endian int32 bytes."""
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The int32 array that `pack_ids` wrote; shape [n], read-only (it shares the message's memory)."""
    return np.frombuffer(data, dtype="<i4")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Base of what travels inside a message."""


class TopLogprobs(Part, frozen=True):
    """The k most likely tokens at one position, most likely first."""

    ids: list[int]
    logprobs: list[float]
