"""Proves the books of a prefix cache by walking everything. It changes nothing, and only test modes call it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .errors import BooksError
from .lease import Lease
from .slots import SlotPool
from .tree import RadixTree


def audit_books(pool: SlotPool, tree: RadixTree, leases: Collection[Lease], *, private: int, enabled: bool) -> None:
    """Raise BooksError, saying what was found, unless the books are right.

    private: how many slots are counted as such. enabled: whether leases stand in the tree at all.
    """
    pool.audit()
    tree.audit()
    held = dict.fromkeys(tree.nodes(), 0)
    states = [pool.free_slots(), *(node.slots for node in held)]
    found = 0
    for lease in leases:
        _audit_lease(lease, tree, enabled=enabled)
        states.append(lease.buffer[lease.shared : lease.length])
        found += lease.private
        if lease.node is not None:
            if lease.node not in held:
                raise BooksError("an open lease's node is no longer in the tree")
            held[lease.node] += 1
    if found != private:
        raise BooksError(f"{private} slots are counted as private, but the open leases have {found}")
    for node, own in held.items():
        below = sum(child.locks for child in node.children.values())
        if node.locks != own + below:
            raise BooksError(f"a node has {node.locks} locks, but {own} leases end there and {below} below it")
    _audit_slots(np.concatenate(states), pool.total)
    if pool.free + private + tree.pinned + tree.evictable != pool.total:
        raise BooksError(
            f"{pool.free} free + {private} private + {tree.pinned} pinned + {tree.evictable} evictable slots "
            f"are not {pool.total}"
        )


def _audit_slots(slots: np.ndarray, total: int) -> None:
    """Raise unless `slots`, from everywhere that may hold one, name every slot exactly once."""
    if len(slots) and (slots.min() < 0 or slots.max() >= total):
        raise BooksError(f"a slot outside 0..{total - 1} is in the books")
    count = np.bincount(slots, minlength=total)
    if (count > 1).any():
        raise BooksError(f"slots in more than one state, or in one twice: {np.flatnonzero(count > 1).tolist()}")
    if (count == 0).any():
        raise BooksError(f"slots in no state at all (lost): {np.flatnonzero(count == 0).tolist()}")


def _audit_lease(lease: Lease, tree: RadixTree, *, enabled: bool) -> None:
    if lease.closed:
        raise BooksError("a closed lease is listed as open")
    if not 0 <= lease.shared <= lease.length <= len(lease.buffer):
        raise BooksError(f"a lease shares {lease.shared} of {lease.length} slots in room for {len(lease.buffer)}")
    node = lease.node
    if (node is None) == enabled:
        raise BooksError("an open lease has no node in the tree, or has one while the cache is off")
    if (node.end if node is not None else 0) != lease.shared:
        raise BooksError(f"a lease shares {lease.shared} positions, but its node ends elsewhere")
    while node is not None:
        if not np.array_equal(lease.buffer[node.start : node.end], node.slots):
            raise BooksError(f"a lease's view of positions {node.start}..{node.end - 1} is not what the tree holds")
        if node.parent is None and tree.roots.get(lease.namespace) is not node:
            raise BooksError(f"a lease of namespace {lease.namespace!r} is in the tree of another")
        node = node.parent
