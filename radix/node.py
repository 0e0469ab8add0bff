"""A node of the radix tree: plain data. Only the tree and its eviction queue may change one."""

from __future__ import annotations

import numpy as np

from .evicted_paths import digest_of, digest_of_root

Rank = int | tuple[int, ...]


class Node:
    """One edge of the tree and what hangs below it.

    tokens, slots: int32 [n], equally long, n >= 1 (0 in a root): the edge's token ids and where each one's K/V lives.
    end: tokens from the root to the end of this edge. It never changes, also when the edge is split above.
    locks: leases that end at or below this node. stamp: when the node was last used (the tree's clock). rank: what the
    eviction policy makes of its uses. confirmed: a model's finite output was computed from all slots down to here, so
    these are finite too; a confirmed node's parent is confirmed.
    digest: the hash of all tokens from the root to the end (see `evicted_paths`). children: by the first token of their
    edge. queued: whether the eviction queue has an entry for the node.
    """

    __slots__ = (
        "children",
        "confirmed",
        "digest",
        "end",
        "locks",
        "parent",
        "queued",
        "rank",
        "slots",
        "stamp",
        "tokens",
    )

    def __init__(self, parent: Node | None, tokens: np.ndarray, slots: np.ndarray, end: int, stamp: int) -> None:
        self.parent = parent
        self.digest = digest_of(parent.digest, tokens) if parent is not None else 0
        self.tokens = tokens
        self.slots = slots
        self.end = end
        self.stamp = stamp
        self.rank: Rank = stamp
        self.locks = 0
        self.confirmed = False
        self.queued = False
        self.children: dict[int, Node] = {}

    @property
    def start(self) -> int:
        """Tokens from the root to the beginning of this edge."""
        return self.end - len(self.tokens)


class Root(Node):
    """The top of one namespace's tree; its edge is empty."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        empty = np.empty(0, dtype=np.int32)
        super().__init__(None, empty, empty, 0, 0)
        self.namespace = namespace
        self.digest = digest_of_root(namespace)
        self.confirmed = True
