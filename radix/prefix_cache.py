"""The one face of the radix tree and the slot pool that the scheduler sees: leases on cached prefixes and slots.

It keeps `free + private + pinned + evictable = total` after every call, and must never free a slot that an open
lease's view still names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .audit import audit_books
from .errors import BooksError
from .eviction import EvictionPolicy
from .lease import Lease
from .miss import Miss, miss_at_end
from .node import Node
from .slots import SlotPool
from .tier import SlotCopy, Tier
from .tree import RadixTree

_SPARE = 16  # room for the first few decoded tokens before a lease's buffer has to grow
_NOTHING = np.empty(0, dtype=np.int32)


class PrefixCache:
    """Leases on a pool of `total_slots` slots, with the prefixes that are worth keeping in a radix tree.

    enabled False: nothing is ever shared; leases have private slots only. poison True (test mode): freed slots are
    remembered for `take_released`. policy: what is evicted first; None: the least recently used. tier: where evicted
    prefixes go on being held. Token arrays are int32 [n] and may be read-only; nothing keeps a reference to them.
    evicted_tokens counts the slots that were evicted to make room (not those that `flush` dropped).
    """

    def __init__(
        self,
        total_slots: int,
        enabled: bool = True,
        poison: bool = False,
        policy: EvictionPolicy | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.pool = SlotPool(total_slots)
        self.tree = RadixTree(policy)
        self.tier = tier
        self.enabled = enabled
        self.poison = poison
        self.private = 0
        self.evicted_tokens = 0
        self.leases: set[Lease] = set()
        self._released: list[np.ndarray] = []
        self._copies: list[SlotCopy] = []

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

    def survey(self, namespace: str, tokens: np.ndarray, limit: int) -> tuple[int, int]:
        """As `peek`, and how many of those tokens are evictable until a lease on them is opened. No side effects."""
        _check_prompt(tokens, limit)
        return self.tree.survey(namespace, tokens, limit)

    def miss(self, lease: Lease, tokens: np.ndarray) -> Miss:
        """What is known of the place where a sequence leaves the tree: the end of a lease without private slots."""
        return miss_at_end(self.tree, lease, tokens)

    def releasable(self, leases: Sequence[Lease]) -> int:
        """How many more slots would be available if these leases were closed. No side effects."""
        held: dict[Node, int] = {}
        for lease in leases:
            node = lease.node
            while node is not None:
                held[node] = held.get(node, 0) + 1
                node = node.parent
        shared = sum(len(node.slots) for node, locks in held.items() if locks == node.locks)
        return shared + sum(lease.private for lease in leases)

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
        """Drop everything that nobody has locked, and all that the tier holds; returns the number of slots freed."""
        if self.tier is not None:
            self.tier.flush()
        return self._drop(self.tree.evict(self.tree.evictable))

    def take_released(self) -> np.ndarray:
        """Test mode: the slots released since the last call, each once, int32 [n]; empty without `poison`. Those that
        are copied in since then are not among them, so it comes before `take_copies`."""
        if not self._released:
            return _NOTHING
        released = np.unique(np.concatenate(self._released))
        self._released.clear()
        filled = [copy.slots for copy in self._copies if not copy.out]
        return np.setdiff1d(released, np.concatenate(filled)) if filled else released

    # --- what is finite -----------------------------------------------------------------------------------------

    def confirm(self, lease: Lease) -> None:
        """Note that what the lease shares is finite: something finite was computed from all of it."""
        if lease.node is not None:
            self.tree.confirm(lease.node)

    def confirmed(self, namespace: str, tokens: np.ndarray) -> int:
        """How many leading tokens are held and confirmed."""
        top = self.tree.unconfirmed(namespace, tokens)
        return self.tree.peek(namespace, tokens, len(tokens)) if top is None else top.start

    def on_unconfirmed(self, namespace: str, tokens: np.ndarray) -> list[Lease]:
        """The leases that hold anything of what `drop_unconfirmed` drops; close them first."""
        top = self.tree.unconfirmed(namespace, tokens)
        return [] if top is None else [lease for lease in self.leases if _stands_on(lease, top)]

    def drop_unconfirmed(self, namespace: str, tokens: np.ndarray) -> None:
        """Drop what is held of `tokens` from the first position on that is not confirmed, and all that is behind it."""
        top = self.tree.unconfirmed(namespace, tokens)
        if top is not None:
            self._drop(self.tree.cut(top))

    # --- the tier below -----------------------------------------------------------------------------------------

    def below(self, namespace: str, tokens: np.ndarray, limit: int) -> int:
        """How many leading tokens, at most `limit`, the tier holds; they are not in slots. No side effects."""
        return self.tier.held(namespace, tokens, limit) if self.tier is not None else 0

    def load(self, namespace: str, tokens: np.ndarray, limit: int) -> str | None:
        """See to it that `restore` finds what is `below`; the key to wait for, None where nothing has to be loaded."""
        if self.tier is None or self.below(namespace, tokens, limit) <= self.peek(namespace, tokens, limit):
            return None
        return self.tier.load(namespace, tokens, limit)

    def loaded(self, key: str, error: str) -> None:
        """The worker has loaded what `load` named this key for, or cannot."""
        if self.tier is not None:
            self.tier.loaded(key, error)

    def restore(self, lease: Lease, tokens: np.ndarray, limit: int) -> int:
        """Bring back from the tier what it holds behind the lease's end, up to position `limit`: the lease grows by
        it, shared, and copies are due. Returns how many positions were gained. No private slots are allowed."""
        _check_open(lease)
        if lease.private:
            raise BooksError(f"a lease with {lease.private} private slots cannot take from the tier")
        start, above = lease.length, lease.node
        count = min(self.below(lease.namespace, tokens, limit) - start, self.available)
        if self.tier is None or above is None or count <= 0:
            return 0
        slots = self.grow(lease, count)  # which may evict, and so change what the tier holds
        assert slots is not None
        places = self.tier.places(lease.namespace, tokens, start, start + count)
        self.shrink(lease, start + len(places))
        if len(places):
            self._copies.append(SlotCopy(slots[: len(places)].copy(), places, out=False))
            self.publish(lease, tokens[: lease.length])
            if above.confirmed:
                self.confirm(lease)  # only what is confirmed goes out
        return len(places)

    def take_copies(self) -> list[SlotCopy]:
        """The copies that have become due since the last call, in their order."""
        copies, self._copies = self._copies, []
        return copies

    def _store(self, node: Node) -> None:
        """Let the tier have the path down to a node that is about to go."""
        assert self.tier is not None
        if not node.confirmed:
            return
        namespace, tokens, slots = self.tree.path(node)
        start, places = self.tier.store(namespace, tokens)
        if len(places):
            self._copies.append(SlotCopy(slots[start : start + len(places)], places, out=True))

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
        leaving = self._store if self.tier is not None else None
        self.evicted_tokens += self._drop(self.tree.evict(n - self.pool.free, leaving))
        return True

    def _drop(self, dropped: list[np.ndarray]) -> int:
        if not dropped:
            return 0
        slots = dropped[0] if len(dropped) == 1 else np.concatenate(dropped)
        self._release(slots)
        return len(slots)

    def _release(self, slots: np.ndarray) -> None:
        self.pool.release(slots)
        if self.poison and len(slots):
            self._released.append(slots)

    def audit(self) -> None:
        """Walk everything and raise BooksError, saying what was found, unless the books are right."""
        audit_books(self.pool, self.tree, self.leases, private=self.private, enabled=self.enabled)
        if self.tier is not None:
            self.tier.audit()


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


def _stands_on(lease: Lease, node: Node) -> bool:
    step = lease.node
    while step is not None and step is not node:
        step = step.parent
    return step is not None
