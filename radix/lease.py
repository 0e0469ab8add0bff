"""What one running request holds of the KV slots. Plain data: only the prefix cache changes it."""

from __future__ import annotations

import numpy as np

from .node import Node


class Lease:
    """What one running request holds: a locked path in the tree, and private slots behind it.

    length: positions that have a slot. shared: how many of them, from position 0 on, are the tree's (pinned by this
    lease's lock); the rest are private. `node` and `buffer` are the cache's own; only `slots` is for others.
    """

    __slots__ = ("buffer", "closed", "length", "namespace", "node", "shared")

    def __init__(self, namespace: str, capacity: int) -> None:
        self.namespace = namespace
        self.length = 0
        self.shared = 0
        self.closed = False
        self.node: Node | None = None  # the locked node, where shared ends; None where nothing is shared at all
        self.buffer = np.empty(capacity, dtype=np.int32)

    @property
    def slots(self) -> np.ndarray:
        """int32 [length]: the slot of each position. A view for reading; take it anew after every call on the lease."""
        return self.buffer[: self.length]

    @property
    def private(self) -> int:
        """How many slots only this lease holds."""
        return self.length - self.shared

    def reserve(self, length: int) -> None:
        """Make room for `length` positions; doubling, so that appending stays O(1)."""
        if length > len(self.buffer):
            wider = np.empty(max(length, 2 * len(self.buffer)), dtype=np.int32)
            wider[: self.length] = self.buffer[: self.length]
            self.buffer = wider
