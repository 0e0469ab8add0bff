"""What messages are made of: their base classes, packed arrays, and the parts that several kinds of them carry."""

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
    """Base of everything that travels as a frame of its own."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Base of what travels inside a message."""


class Sampling(Part, frozen=True, omit_defaults=True):
    """How to choose tokens. Ranges are checked in the front (`managers.params`); everyone downstream trusts them.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off. `seed` is always set: the front draws one where
    the user gave none. A token is a function of (seed, its position in the sequence) and the logits only.
    `logprobs` None: none wanted; k >= 0: the chosen token's and the k most likely tokens' at every position.
    """

    max_tokens: int
    seed: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None


class TopLogprobs(Part, frozen=True):
    """The k most likely tokens at one position, most likely first."""

    ids: list[int]
    logprobs: list[float]
