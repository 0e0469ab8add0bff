"""Which leaf of the radix tree goes next: a policy ranks the nodes, a heap by rank finds the first. It never walks the
tree.

Every node has at most one entry, so the heap is never larger than the tree. An entry's key is the node's rank when it
was queued. Ranks only grow, hence a stale key is only ever too early, and putting an entry right when it comes up
gives the exact order.

A new policy is a class here beside `LeastRecentlyUsed`; the tree is given one, and asks nothing else of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Protocol

from .errors import BooksError
from .node import Node, Rank


class EvictionPolicy(Protocol):
    """Ranks nodes: of the unlocked leaves the one of the lowest rank goes first."""

    def rank(self, node: Node, *, is_new: bool) -> Rank:
        """The node's rank from now on, as it was used at `node.stamp`; `node.rank` is the one before, which it may not
        fall below. Where the node is new, no use of it was ranked before."""
        ...


class LeastRecentlyUsed:
    """By last use."""

    def rank(self, node: Node, *, is_new: bool) -> Rank:
        return node.stamp


class EvictionQueue:
    """The unlocked leaves, lowest rank first, among entries that have gone stale since they were queued."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Node]] = []
        self._serial = 0  # breaks ties between keys, so that nodes themselves are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node) -> None:
        """Note that `node` has become an unlocked leaf."""
        if not node.queued:
            node.queued = True
            self._serial += 1
            heapq.heappush(self._heap, (node.rank, self._serial, node))

    def take(self) -> Node | None:
        """Remove and return the unlocked leaf of the lowest rank; None where there is none.

        O(log n), plus O(log n) for each entry that went stale; a use of a leaf makes one entry stale at most.
        """
        heap = self._heap
        while heap:
            key, serial, node = heap[0]
            if node.locks or node.children:
                heapq.heappop(heap)
                node.queued = False  # it is offered again once it is an unlocked leaf again
            elif node.rank != key:
                heapq.heapreplace(heap, (node.rank, serial, node))
            else:
                heapq.heappop(heap)
                node.queued = False
                return node
        return None

    def drop(self, nodes: Collection[Node]) -> None:
        """Forget these nodes, which leave the tree in another way. O(n): it is for what is rare."""
        self._heap = [entry for entry in self._heap if entry[2] not in nodes]
        heapq.heapify(self._heap)
        for node in nodes:
            node.queued = False

    def audit(self, nodes: list[Node]) -> None:
        """Raise BooksError unless every unlocked leaf of `nodes` (all nodes but the roots) is queued, and only once."""
        live = set(nodes)
        seen: set[Node] = set()
        for index, (key, _, node) in enumerate(self._heap):
            if node not in live:
                raise BooksError("the eviction queue holds a node that is no longer in the tree")
            if node in seen:
                raise BooksError("the eviction queue holds a node twice")
            if (key,) > (node.rank,):  # one policy's ranks are of one type, which a tuple does not ask about
                raise BooksError(f"the eviction queue would evict a node of rank {node.rank} as late as {key}")
            if index and self._heap[(index - 1) // 2][:2] > self._heap[index][:2]:
                raise BooksError("the eviction queue is out of order")
            seen.add(node)
        for node in nodes:
            if node.queued != (node in seen):
                raise BooksError("a node is marked as queued for eviction but is not, or the reverse")
            if not node.queued and not node.locks and not node.children:
                raise BooksError("an unlocked leaf is missing from the eviction queue")
