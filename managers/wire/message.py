"""The base class of everything that travels as a frame of its own. Nothing is ever pickled.

Each struct is tagged with its class name and travels as msgpack (see `sockets`). Arrays of token ids and slots travel
as raw little-endian int32 bytes (`runtime.records.pack_ids`).
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything that travels as a frame of its own."""
