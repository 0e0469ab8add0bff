"""The one face of the radix tree and the slot pool that the scheduler sees: leases on cached prefixes and slots.

It keeps `free + private + pinned + evictable = total` after every call, and must never free a slot that an open
lease's view still names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import BooksError
from .node import Node
from .slots import SlotPool
from .tree import RadixTree

_SPARE = 16  # room for the first few decoded tokens before a lease's buffer has to grow
_NOTHING = np.empty(0, dtype=np.int32)


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


class PrefixCache:
    """Leases on a pool of `total_slots` slots, with the prefixes that are worth keeping in a radix tree.

    enabled False: nothing is ever shared; leases have private slots only. poison True (test mode): freed slots are
    remembered for `take_released`. Token arrays are int32 [n] and may be read-only; nothing keeps a reference to them.
    evicted_tokens counts the slots that were evicted to make room (not those that `flush` dropped).
    """

    def __init__(self, total_slots: int, enabled: bool = True, poison: bool = False) -> None:
        self.pool = SlotPool(total_slots)
        self.tree = RadixTree()
        self.enabled = enabled
        self.poison = poison
        self.private = 0
        self.evicted_tokens = 0
        self.leases: set[Lease] = set()
        self._released: list[np.ndarray] = []

    # --- the books ----------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Slots in all."""
        return self.pool.total

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return self.pool.free

    @property
    def pinned(self) -> int:
        """Slots in the tree on a locked path."""
        return self.tree.pinned

    @property
    def evictable(self) -> int:
        """Slots in the tree that nobody has locked."""
        return self.tree.evictable

    @property
    def available(self) -> int:
        """Slots that `grow` can hand out: free or evictable."""
        return self.pool.free + self.tree.evictable

    @property
    def version(self) -> int:
        """Changes whenever what `peek` would answer may have changed."""
        return self.tree.version

    # --- the life of a lease ------------------------------------------------------------------------------------

    def peek(self, namespace: str, tokens: np.ndarray, limit: int) -> int:
        """How many leading tokens `open` would match, at most `limit`. No side effects."""
        _check_prompt(tokens, limit)
        return self.tree.peek(namespace, tokens, limit)

    def continuation(self, namespace: str, tokens: np.ndarray, count: int) -> np.ndarray:
        """What others had behind `tokens`: up to `count` ids, int32; empty unless the tree holds all of `tokens`.

        Of several branches, the one used last. No side effects.
        """
        _check_prompt(tokens, count)
        return self.tree.continuation(namespace, tokens, count)

    def open(self, namespace: str, tokens: np.ndarray, limit: int) -> Lease:
        """A lease on the longest held prefix of `tokens`, at most `limit` tokens of it; it is locked and stamped."""
        _check_prompt(tokens, limit)
        lease = Lease(namespace, len(tokens) + _SPARE)
        if self.enabled:
            lease.node = root = self.tree.root(namespace)
            self.tree.lock(root)
            self._follow(lease, root, tokens, limit)
        self.leases.add(lease)
        return lease

    def advance(self, lease: Lease, tokens: np.ndarray, limit: int) -> int:
        """Adopt what others have put into the tree behind the lease's end; returns how many positions were gained.

        tokens: the whole sequence, position 0 first; the lease ends at most at `limit`. The lease must not have private
        slots.
        """
        _check_open(lease)
        _check_prompt(tokens, limit)
        if lease.private:
            raise BooksError(f"a lease with {lease.private} private slots cannot advance")
        if lease.node is None or min(limit, len(tokens)) <= lease.length:
            return 0
        before = lease.length
        self._follow(lease, lease.node, tokens, limit)
        return lease.length - before

    def grow(self, lease: Lease, n: int) -> np.ndarray | None:
        """Append `n` private slots to the lease: a view, int32 [n], of the new ones.

        Evicts as needed. None, and nothing has changed, where free and evictable slots together are fewer than n.
        """
        _check_open(lease)
        if n < 0:
            raise ValueError(f"a lease cannot grow by {n} slots")
        if n > self.pool.free and not self._make_room(n):
            return None
        start = lease.length
        stop = start + n
        if stop > len(lease.buffer):
            lease.reserve(stop)
        added = lease.buffer[start:stop]
        if n == 1:
            added[0] = self.pool.allocate_one()
        else:
            added[:] = self.pool.allocate(n)
        lease.length = stop
        self.private += n
        return added

    def grow_each(self, leases: Sequence[Lease]) -> np.ndarray | None:
        """Append one private slot to each of the leases, all or none; int32 [len(leases)], in their order.

        Evicts as needed. None, and nothing has changed, where there are not enough slots for all.
        """
        for lease in leases:
            if lease.closed:
                raise BooksError("a closed lease was used")
        n = len(leases)
        if n > self.pool.free and not self._make_room(n):
            return None
        slots = self.pool.allocate(n)
        for lease, slot in zip(leases, slots.tolist()):
            length = lease.length
            if length == len(lease.buffer):
                lease.reserve(length + 1)
            lease.buffer[length] = slot
            lease.length = length + 1
        self.private += n
        return slots

    def shrink(self, lease: Lease, length: int) -> None:
        """Release the private slots of the positions from `length` on; `length` is lease.shared at least."""
        _check_open(lease)
        if not lease.shared <= length <= lease.length:
            raise BooksError(
                f"a lease of {lease.length} positions, {lease.shared} of them shared, cannot shrink to {length}"
            )
        if length == lease.length:
            return
        self.private -= lease.length - length
        self._release(lease.buffer[length : lease.length].copy())
        lease.length = length

    def publish(self, lease: Lease, tokens: np.ndarray) -> tuple[int, int] | None:
        """Put the lease's positions [0, len(tokens)) into the tree; afterwards they are shared.

        tokens: int32, at most lease.length of them; they must be those that the slots were (or will be) filled for.
        Where the tree has come to hold more of them than the lease shares, the lease is moved onto the tree's slots
        and then its own copies are released. Returns the span (start, stop) of the positions whose slot changed so;
        None where none did.
        """
        _check_open(lease)
        _check_tokens(tokens)
        length = len(tokens)
        if length > lease.length:
            raise BooksError(f"{length} tokens were published of a lease with {lease.length} slots")
        if lease.node is None or length <= lease.shared:
            return None
        above, start = lease.node, lease.shared
        node, held = self.tree.insert(above, tokens, lease.buffer)
        self.tree.lock(node, above)
        lease.node = node
        lease.shared = length
        self.private -= length - start
        if held == start:
            return None
        own = lease.buffer[start:held].copy()
        self.tree.copy_slots(node, above, lease.buffer)
        self._release(own)
        return start, held

    def close(self, lease: Lease, tokens: np.ndarray | None = None) -> None:
        """End the lease: publish `tokens` (if given), unlock its path and release the slots that remain private."""
        _check_open(lease)
        if tokens is not None:
            self.publish(lease, tokens)
        lease.closed = True
        self.leases.remove(lease)
        self.private -= lease.private
        self._release(lease.buffer[lease.shared : lease.length].copy())
        if lease.node is not None:
            self.tree.touch(lease.node)  # it was in use until now
            self.tree.unlock(lease.node)
            lease.node = None

    def flush(self) -> int:
        """Drop everything that nobody has locked; returns the number of slots freed."""
        return self._drop(self.tree.evictable)

    def take_released(self) -> np.ndarray:
        """Test mode: the slots released since the last call, each once, int32 [n]. Empty without `poison`."""
        if not self._released:
            return _NOTHING
        released = np.unique(np.concatenate(self._released))
        self._released.clear()
        return released

    # --- pieces -------------------------------------------------------------------------------------------------

    def _follow(self, lease: Lease, above: Node, tokens: np.ndarray, limit: int) -> None:
        """Move a lease without private slots from its node `above` down to the end of what the tree holds."""
        node = self.tree.match(above, tokens, limit)
        if node is above:
            return
        self.tree.lock(node, above)
        lease.reserve(node.end)
        self.tree.copy_slots(node, above, lease.buffer)
        lease.node = node
        lease.length = lease.shared = node.end

    def _make_room(self, n: int) -> bool:
        """Evict until `n` slots are free; False, and nothing has changed, where that cannot be."""
        if n > self.available:
            return False
        self.evicted_tokens += self._drop(n - self.pool.free)
        return True

    def _drop(self, count: int) -> int:
        dropped = self.tree.evict(count)
        if not dropped:
            return 0
        slots = dropped[0] if len(dropped) == 1 else np.concatenate(dropped)
        self._release(slots)
        return len(slots)

    def _release(self, slots: np.ndarray) -> None:
        self.pool.release(slots)
        if self.poison and len(slots):
            self._released.append(slots)

    # --- proving ------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Walk everything and raise BooksError, saying what was found, unless the books are right."""
        self.pool.audit()
        self.tree.audit()
        held = dict.fromkeys(self.tree.nodes(), 0)
        states = [self.pool.free_slots(), *(node.slots for node in held)]
        private = 0
        for lease in self.leases:
            self._audit_lease(lease)
            states.append(lease.buffer[lease.shared : lease.length])
            private += lease.private
            if lease.node is not None:
                if lease.node not in held:
                    raise BooksError("an open lease's node is no longer in the tree")
                held[lease.node] += 1
        if private != self.private:
            raise BooksError(f"{self.private} slots are counted as private, but the open leases have {private}")
        for node, own in held.items():
            below = sum(child.locks for child in node.children.values())
            if node.locks != own + below:
                raise BooksError(f"a node has {node.locks} locks, but {own} leases end there and {below} below it")
        self._audit_slots(np.concatenate(states))
        if self.free + self.private + self.pinned + self.evictable != self.total:
            raise BooksError(
                f"{self.free} free + {self.private} private + {self.pinned} pinned + {self.evictable} evictable slots "
                f"are not {self.total}"
            )

    def _audit_slots(self, slots: np.ndarray) -> None:
        """Raise unless `slots`, from everywhere that may hold one, name every slot exactly once."""
        if len(slots) and (slots.min() < 0 or slots.max() >= self.total):
            raise BooksError(f"a slot outside 0..{self.total - 1} is in the books")
        count = np.bincount(slots, minlength=self.total)
        if (count > 1).any():
            raise BooksError(f"slots in more than one state, or in one twice: {np.flatnonzero(count > 1).tolist()}")
        if (count == 0).any():
            raise BooksError(f"slots in no state at all (lost): {np.flatnonzero(count == 0).tolist()}")

    def _audit_lease(self, lease: Lease) -> None:
        if lease.closed:
            raise BooksError("a closed lease is listed as open")
        if not 0 <= lease.shared <= lease.length <= len(lease.buffer):
            raise BooksError(f"a lease shares {lease.shared} of {lease.length} slots in room for {len(lease.buffer)}")
        node = lease.node
        if (node is None) == self.enabled:
            raise BooksError("an open lease has no node in the tree, or has one while the cache is off")
        if (node.end if node is not None else 0) != lease.shared:
            raise BooksError(f"a lease shares {lease.shared} positions, but its node ends elsewhere")
        while node is not None:
            if not np.array_equal(lease.buffer[node.start : node.end], node.slots):
                raise BooksError(f"a lease's view of positions {node.start}..{node.end - 1} is not what the tree holds")
            if node.parent is None and self.tree.roots.get(lease.namespace) is not node:
                raise BooksError(f"a lease of namespace {lease.namespace!r} is in the tree of another")
            node = node.parent


def _check_open(lease: Lease) -> None:
    if lease.closed:
        raise BooksError("a closed lease was used")


def _check_tokens(tokens: np.ndarray) -> None:
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise TypeError(f"token ids must be an int32 array of one dimension, not {tokens.dtype} of {tokens.ndim}")


def _check_prompt(tokens: np.ndarray, limit: int) -> None:
    _check_tokens(tokens)
    if limit < 0:
        raise ValueError(f"a match cannot be limited to {limit} tokens")
