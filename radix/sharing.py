"""Finds which leases of a batch hold the same run of slots, so that attention may read it once for all of them.

It only reads the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .lease import Lease
from .node import Node

MIN_SHARED = 64  # tokens: a shorter run is read as fast for each lease by itself


@dataclass(frozen=True)
class SharedRun:
    """The leases `members` (by their place in the batch) have the same slots for their first `length` positions."""

    members: list[int]
    length: int


def shared_runs(leases: Sequence[Lease], reaches: Sequence[int]) -> list[SharedRun]:
    """Groups of leases that share a prefix in the tree; a lease is in one group at most.

    reaches[i]: the group of lease i shares no more than so many positions. Of the possible groups those that save most
    reading are taken first (others but one need not read the run). Costs O(depth of the paths).
    """
    members_of: dict[Node, list[int]] = {}
    for place, (lease, reach) in enumerate(zip(leases, reaches, strict=True)):
        node = lease.node
        while node is not None and node.end >= MIN_SHARED:
            if node.end <= reach:
                members_of.setdefault(node, []).append(place)
            node = node.parent
    runs: list[SharedRun] = []
    taken: set[int] = set()
    for node, places in sorted(members_of.items(), key=lambda item: (1 - len(item[1])) * item[0].end):
        members = [place for place in places if place not in taken]
        if len(members) > 1:
            runs.append(SharedRun(members, node.end))
            taken.update(members)
    return runs
