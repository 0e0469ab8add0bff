"""What travels between processes is made of these: the records' base classes, and arrays packed as bytes. Torch-free.

Nothing is ever pickled: a record is msgpack, and arrays of token ids and slots are raw little-endian int32 bytes.
"""

from __future__ import annotations

import msgspec
import numpy as np


def pack_ids(ids: np.ndarray | list[int]) -> bytes:
    """Token ids, slots or lengths as little-endian int32 bytes."""
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The int32 array that `pack_ids` wrote; shape [n], read-only (it shares the message's memory)."""
    return np.frombuffer(data, dtype="<i4")


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything that travels as a frame of its own, tagged with its class name."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Base of what travels inside a message."""


class TopLogprobs(Part, frozen=True):
    """The k most likely tokens at one position, most likely first, with natural log-probabilities."""

    ids: list[int]
    logprobs: list[float]
