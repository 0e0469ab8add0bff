"""Which leaf of the radix tree goes next: a heap by last use with lazy invalidation. It never walks the tree.

Every node has at most one entry, so the heap is never larger than the tree. An entry's key is the node's stamp when it
was queued. Stamps only grow, hence a stale key is only ever too early, and putting an entry right when it comes up
gives the exact order.
"""

from __future__ import annotations

import heapq

from .errors import BooksError
from .node import Node


class EvictionQueue:
    """The unlocked leaves, least recently used first, among entries that have gone stale since they were queued."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._serial = 0  # breaks ties between keys, so that nodes themselves are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node) -> None:
        """Note that `node` has become an unlocked leaf."""
        if not node.queued:
            node.queued = True
            self._serial += 1
            heapq.heappush(self._heap, (node.stamp, self._serial, node))

    def take(self) -> Node | None:
        """Remove and return the least recently used unlocked leaf; None where there is none.

        O(log n), plus O(log n) for each entry that went stale; a use of a leaf makes one entry stale at most.
        """
        heap = self._heap
        while heap:
            key, serial, node = heap[0]
            if node.locks or node.children:
                heapq.heappop(heap)
                node.queued = False  # it is offered again once it is an unlocked leaf again
            elif node.stamp != key:
                heapq.heapreplace(heap, (node.stamp, serial, node))
            else:
                heapq.heappop(heap)
                node.queued = False
                return node
        return None

    def audit(self, nodes: list[Node]) -> None:
        """Raise BooksError unless every unlocked leaf of `nodes` (all nodes but the roots) is queued, and only once."""
        live = set(nodes)
        seen: set[Node] = set()
        for index, (key, _, node) in enumerate(self._heap):
            if node not in live:
                raise BooksError("the eviction queue holds a node that is no longer in the tree")
            if node in seen:
                raise BooksError("the eviction queue holds a node twice")
            if key > node.stamp:
                raise BooksError(f"the eviction queue would evict a node of stamp {node.stamp} as late as {key}")
            if index and self._heap[(index - 1) // 2][:2] > self._heap[index][:2]:
                raise BooksError("the eviction queue is out of order")
            seen.add(node)
        for node in nodes:
            if node.queued != (node in seen):
                raise BooksError("a node is marked as queued for eviction but is not, or the reverse")
            if not node.queued and not node.locks and not node.children:
                raise BooksError("an unlocked leaf is missing from the eviction queue")
