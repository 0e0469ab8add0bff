"""What passes between the tokenizer process and its grammar compilers: frames of msgpack over plain pipes.

A frame is its length (4 bytes, little-endian), then one message. Nothing is ever pickled.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

from ....constrained.spec import Compiled, Constraint

_LENGTH = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size
MAX_FRAME_BYTES = 2**28


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the compiler, once: the model whose vocabulary it compiles for, and how much memory it may add to that."""

    model_path: str
    memory_bytes: int


class Started(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the compiler: its vocabulary is loaded."""


class Job(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the compiler: compile this. key: the constraint's (`constrained.spec.constraint_key`)."""

    constraint: Constraint
    key: str


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the compiler, for one Job: the compiled constraint, or why there is none.

    refused: the constraint is wrong, or too much. failed: a fault of ours; also the answer to a Setup that fails.
    """

    compiled: Compiled | None = None
    refused: str = ""
    failed: str = ""


ToCompiler = Setup | Job
FromCompiler = Started | Done

_encoder = msgspec.msgpack.Encoder()


def frame(message: ToCompiler | FromCompiler) -> bytes:
    """A message as it travels."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


def length_of(header: bytes) -> int:
    """The length of the message after this header. Raises ValueError for one that no frame can have."""
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return length


def read_frame(pipe: BinaryIO) -> bytes | None:
    """The next message's bytes; None at the end of the pipe."""
    header = pipe.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    length = length_of(header)
    data = pipe.read(length)
    return data if len(data) == length else None
