"""The prefix cache against a naive model: a dictionary from (namespace, prefix) to slot, with its own LRU order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from sapwood.radix.lease import Lease
from sapwood.radix.node import Node, Root
from sapwood.radix.prefix_cache import PrefixCache

Prefix = tuple[str, tuple[int, ...]]

NAMESPACES = st.sampled_from(["", "", "", "salt"])
TOKENS = st.lists(st.integers(0, 1), max_size=8).map(tuple)
PARTS = st.sampled_from([1.0, 1.0, 0.7, 0.3])
PROMPTS = st.sampled_from([(0, 0, 0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 1, 0, 1), (1, 0), (1, 1, 1, 1)]) | TOKENS.filter(
    bool
)


@dataclass
class NaiveLease:
    """A lease as a list of slots, beside the real one."""

    lease: Lease
    namespace: str
    tokens: tuple[int, ...]
    slots: list[int]
    shared: int


@dataclass
class Naive:
    """Everything by brute force over a dictionary of prefixes.

    `ends` are the prefixes at which an edge has been cut: a leaf goes back to the nearest of them.
    """

    total: int
    held: dict[Prefix, int] = field(default_factory=dict)
    stamps: dict[Prefix, int] = field(default_factory=dict)
    ends: set[Prefix] = field(default_factory=set)
    leases: list[NaiveLease] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    clock: int = 0
    evicted: int = 0

    def matched(self, namespace: str, tokens: tuple[int, ...], limit: int) -> int:
        return max(k for k in range(min(limit, len(tokens)) + 1) if k == 0 or (namespace, tokens[:k]) in self.held)

    def use(self, namespace: str, tokens: tuple[int, ...]) -> None:
        self.clock += 1
        for k in range(1, len(tokens) + 1):
            self.stamps[namespace, tokens[:k]] = self.clock
        if tokens:
            self.ends.add((namespace, tokens))

    def locked(self, prefix: Prefix) -> bool:
        namespace, tokens = prefix
        k = len(tokens)
        return any(one.namespace == namespace and one.shared >= k and one.tokens[:k] == tokens for one in self.leases)

    def evict(self, count: int) -> int:
        """Drop least recently used leaves until `count` slots have come free; returns how many have."""
        freed = 0
        while freed < count:
            inner = {(namespace, tokens[:-1]) for namespace, tokens in self.held}
            leaves = [prefix for prefix in self.held if prefix not in inner and not self.locked(prefix)]
            if not leaves:
                break
            namespace, tokens = min(leaves, key=lambda prefix: self.stamps[prefix])
            self.ends.discard((namespace, tokens))
            while tokens and (namespace, tokens) not in self.ends:
                self.released.add(self.held.pop((namespace, tokens)))
                del self.stamps[namespace, tokens]
                tokens = tokens[:-1]
                freed += 1
        return freed

    def publish(self, one: NaiveLease, length: int) -> tuple[int, int] | None:
        if length <= one.shared:
            return None
        tokens, before = one.tokens[:length], one.shared
        held = self.matched(one.namespace, tokens, length)
        if held:
            self.ends.add((one.namespace, tokens[:held]))
        self.use(one.namespace, tokens)
        for k in range(before, length):
            prefix = (one.namespace, tokens[: k + 1])
            if k < held:
                self.released.add(one.slots[k])
                one.slots[k] = self.held[prefix]
            else:
                self.held[prefix] = one.slots[k]
        one.shared = length
        return (before, held) if held > before else None

    @property
    def private(self) -> int:
        return sum(len(one.slots) - one.shared for one in self.leases)

    @property
    def pinned(self) -> int:
        return sum(self.locked(prefix) for prefix in self.held)

    @property
    def free(self) -> int:
        return self.total - self.private - len(self.held)


def ids(tokens: tuple[int, ...]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def content(cache: PrefixCache) -> tuple[dict[Prefix, int], set[Prefix]]:
    """What the real tree holds, prefix by prefix, and where its edges end."""
    held: dict[Prefix, int] = {}
    ends: set[Prefix] = set()
    for node in cache.tree.nodes():
        path: list[Node] = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        root = path[-1]
        assert isinstance(root, Root)
        tokens = tuple(np.concatenate([step.tokens for step in reversed(path)]).tolist())
        for k, slot in zip(range(node.start + 1, node.end + 1), node.slots.tolist()):
            held[root.namespace, tokens[:k]] = slot
        if tokens:
            ends.add((root.namespace, tokens))
    return held, ends


class Machine(RuleBasedStateMachine):
    """Random leases on a tiny pool; every answer, slot, counter and eviction must be the naive model's."""

    running = Bundle("running")

    @initialize(total=st.integers(1, 24))
    def begin(self, total: int) -> None:
        self.cache = PrefixCache(total, poison=True)
        self.naive = Naive(total)
        self.version = (self.cache.version, frozenset[Prefix]())

    @rule(target=running, namespace=NAMESPACES, tokens=TOKENS, limit=st.integers(0, 9))
    def open(self, namespace: str, tokens: tuple[int, ...], limit: int) -> NaiveLease:
        return self.open_both(namespace, tokens, limit)

    def open_both(self, namespace: str, tokens: tuple[int, ...], limit: int) -> NaiveLease:
        matched = self.naive.matched(namespace, tokens, limit)
        lease = self.cache.open(namespace, ids(tokens), limit)
        self.naive.use(namespace, tokens[:matched])
        slots = [self.naive.held[namespace, tokens[: k + 1]] for k in range(matched)]
        one = NaiveLease(lease, namespace, tokens, slots, matched)
        self.naive.leases.append(one)
        return one

    @rule(target=running, namespace=NAMESPACES, tokens=PROMPTS)
    def start(self, namespace: str, tokens: tuple[int, ...]) -> NaiveLease:
        """A prompt as the scheduler starts it, where there is room: open and grow, not published yet."""
        return self.start_both(namespace, tokens)

    def start_both(self, namespace: str, tokens: tuple[int, ...]) -> NaiveLease:
        one = self.open_both(namespace, tokens, len(tokens) - 1)
        self.grow(one, tokens[len(one.slots) :])
        return one

    @rule(namespace=NAMESPACES, tokens=PROMPTS)
    def serve(self, namespace: str, tokens: tuple[int, ...]) -> None:
        """A prompt from its start to its end."""
        self.close(self.start_both(namespace, tokens), 1.0)

    @rule(one=running, more=TOKENS, limit=st.integers(0, 9))
    def advance(self, one: NaiveLease, more: tuple[int, ...], limit: int) -> None:
        if len(one.slots) > one.shared:
            return
        one.tokens = one.tokens or more
        matched = max(self.naive.matched(one.namespace, one.tokens, limit), one.shared)
        gained = self.cache.advance(one.lease, ids(one.tokens), limit)
        assert gained == matched - one.shared
        if min(limit, len(one.tokens)) > one.shared:
            self.naive.use(one.namespace, one.tokens[:matched])
        one.slots = [self.naive.held[one.namespace, one.tokens[: k + 1]] for k in range(matched)]
        one.shared = matched

    @rule(one=running, more=TOKENS)
    def grow(self, one: NaiveLease, more: tuple[int, ...]) -> None:
        n = len(more)
        possible = n <= self.naive.total - self.naive.private - self.naive.pinned
        if possible:
            self.naive.evicted += self.naive.evict(n - self.naive.free)
        added = self.cache.grow(one.lease, n)
        assert (added is not None) == possible
        if added is not None:
            self.take(one, added.tolist(), more)

    @precondition(lambda self: self.naive.leases)
    @rule(data=st.data())
    def grow_each(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(self.naive.leases) - 1), unique=True))
        ones = [self.naive.leases[k] for k in chosen]
        possible = len(ones) <= self.naive.total - self.naive.private - self.naive.pinned
        if possible:
            self.naive.evicted += self.naive.evict(len(ones) - self.naive.free)
        added = self.cache.grow_each([one.lease for one in ones])
        assert (added is not None) == possible
        if added is not None:
            for one, slot in zip(ones, added.tolist()):
                self.take(one, [slot], (1,))

    def take(self, one: NaiveLease, slots: list[int], more: tuple[int, ...]) -> None:
        """The lease has got private slots; the tokens that they are for are known where the sequence goes on so."""
        taken = {slot for other in self.naive.leases for slot in other.slots} | set(self.naive.held.values())
        assert taken.isdisjoint(slots)
        assert len(set(slots)) == len(slots)
        one.slots += slots
        if len(one.tokens) < len(one.slots):
            one.tokens += (more + more)[: len(one.slots) - len(one.tokens)]

    @rule(one=running, part=PARTS)
    def publish(self, one: NaiveLease, part: float) -> None:
        length = round(part * len(one.slots))
        expected = self.naive.publish(one, length)
        assert self.cache.publish(one.lease, ids(one.tokens[:length])) == expected

    @rule(one=consumes(running), part=st.none() | PARTS)
    def close(self, one: NaiveLease, part: float | None) -> None:
        tokens = None
        if part is not None:
            length = round(part * len(one.slots))
            self.naive.publish(one, length)
            tokens = ids(one.tokens[:length])
        self.cache.close(one.lease, tokens)
        self.naive.use(one.namespace, one.tokens[: one.shared])
        self.naive.released.update(one.slots[one.shared :])
        self.naive.leases.remove(one)

    @rule()
    def flush(self) -> None:
        assert self.cache.flush() == self.naive.evict(self.naive.total)

    @rule(namespace=NAMESPACES, tokens=TOKENS, limit=st.integers(0, 9))
    def peek(self, namespace: str, tokens: tuple[int, ...], limit: int) -> None:
        assert self.cache.peek(namespace, ids(tokens), limit) == self.naive.matched(namespace, tokens, limit)

    @invariant()
    def the_books_balance(self) -> None:
        cache, naive = self.cache, self.naive
        cache.audit()
        assert (cache.free, cache.private, cache.pinned) == (naive.free, naive.private, naive.pinned)
        assert cache.evictable == len(naive.held) - naive.pinned
        assert cache.available == cache.free + cache.evictable
        assert cache.evicted_tokens == naive.evicted

    @invariant()
    def the_tree_holds_what_the_dictionary_holds(self) -> None:
        assert content(self.cache) == (self.naive.held, self.naive.ends)
        open_namespaces = {one.namespace for one in self.naive.leases}
        assert set(self.cache.tree.roots) == open_namespaces | {namespace for namespace, _ in self.naive.held}

    @invariant()
    def leases_see_their_slots(self) -> None:
        for one in self.naive.leases:
            assert one.lease.slots.tolist() == one.slots
            assert (one.lease.length, one.lease.shared) == (len(one.slots), one.shared)

    @invariant()
    def exactly_the_freed_slots_are_reported(self) -> None:
        assert set(self.cache.take_released().tolist()) == self.naive.released
        self.naive.released.clear()

    @invariant()
    def the_version_changes_with_the_content(self) -> None:
        now = (self.cache.version, frozenset(self.naive.held))
        if now[1] != self.version[1]:
            assert now[0] != self.version[0]
        self.version = now

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for one in self.naive.leases:
            self.cache.close(one.lease)
        self.cache.audit()
        assert (self.cache.private, self.cache.pinned) == (0, 0)
        self.cache.flush()
        assert self.cache.free == self.cache.total
        assert not self.cache.tree.roots


TestAgainstTheNaiveModel = Machine.TestCase
TestAgainstTheNaiveModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
