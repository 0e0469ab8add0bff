"""The radix tree: runs of token ids and the KV slots that hold them, one disjoint tree for each namespace.

It knows which slots its nodes carry, but never allocates or frees one: that is the prefix cache's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .errors import BooksError
from .evicted_paths import EvictedPaths
from .eviction import EvictionPolicy, EvictionQueue, LeastRecentlyUsed
from .node import Node, Root


class RadixTree:
    """Page size is one token. A position is counted from the root of its namespace.

    pinned / evictable: slots on locked / unlocked nodes. version: changes whenever the set of held prefixes does.
    Every use (match, insert, touch) stamps the whole path from the root with one new stamp, so an ancestor is never
    older than a descendant.
    """

    __slots__ = ("_clock", "_policy", "evictable", "evicted_paths", "pinned", "queue", "roots", "version")

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self._policy = policy or LeastRecentlyUsed()
        self.roots: dict[str, Root] = {}
        self.queue = EvictionQueue()
        self.evicted_paths = EvictedPaths()
        self.pinned = 0
        self.evictable = 0
        self.version = 0
        self._clock = 0

    # --- looking ------------------------------------------------------------------------------------------------

    def peek(self, namespace: str, tokens: np.ndarray, limit: int) -> int:
        """How many leading ones of `tokens` (int32 [n]) are held, at most `limit`. Changes nothing."""
        root = self.roots.get(namespace)
        if root is None:
            return 0
        node, inside = _descend(root, tokens, min(limit, len(tokens)))
        return node.end + inside

    def survey(self, namespace: str, tokens: np.ndarray, limit: int) -> tuple[int, int]:
        """As `peek`, and how many of those tokens nobody has locked. Changes nothing."""
        root = self.roots.get(namespace)
        if root is None:
            return 0, 0
        node, inside = _descend(root, tokens, min(limit, len(tokens)))
        unlocked = inside if inside and not _child_at(node, tokens).locks else 0
        step: Node | None = node
        while step is not None and not step.locks:
            unlocked += len(step.tokens)
            step = step.parent
        return node.end + inside, unlocked

    def unconfirmed(self, namespace: str, tokens: np.ndarray) -> Node | None:
        """The topmost node on the path of `tokens` (int32 [n]) that is not confirmed; None where all of them are."""
        node: Node | None = self.roots.get(namespace)
        if node is None:
            return None
        reached, inside = _descend(node, tokens, len(tokens))
        found = _child_at(reached, tokens) if inside else reached
        if found.confirmed:
            return None
        while not (above := _parent(found)).confirmed:
            found = above
        return found

    def continuation(self, namespace: str, tokens: np.ndarray, count: int) -> np.ndarray:
        """Up to `count` ids that the tree holds behind `tokens` (int32 [n]); int32, empty unless it holds them all.

        Where the path forks, the branch that was used last is followed. Changes nothing.
        """
        found: list[np.ndarray] = []
        root = self.roots.get(namespace)
        if root is not None:
            node, inside = _descend(root, tokens, len(tokens))
            if node.end + inside == len(tokens):
                below = _child_at(node, tokens) if inside else _latest_child(node)
                while below is not None and count > 0:
                    found.append(below.tokens[inside : inside + count])
                    count -= len(found[-1])
                    below, inside = _latest_child(below), 0
        return np.concatenate(found) if found else np.empty(0, dtype=np.int32)

    def root(self, namespace: str) -> Root:
        """The namespace's root, made if need be. It is dropped again once it has neither children nor locks."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(namespace)
        return root

    def match(self, start: Node, tokens: np.ndarray, limit: int) -> Node:
        """The node that ends where `tokens` (int32 [n], from position 0) stop being held, or at `limit`.

        `start` is a node that the first start.end tokens lead to. An edge that the match leaves half-way is split.
        """
        node, inside = _descend(start, tokens, min(limit, len(tokens)))
        if inside:
            node = self._split(_child_at(node, tokens), inside)
        self.touch(node)
        return node

    def path(self, node: Node) -> tuple[str, np.ndarray, np.ndarray]:
        """The namespace of a node, and all tokens and slots from position 0 to its end; int32 [node.end] both."""
        steps = [node]
        while steps[-1].parent is not None:
            steps.append(steps[-1].parent)
        root = steps[-1]
        assert isinstance(root, Root)
        steps.reverse()
        return root.namespace, np.concatenate([s.tokens for s in steps]), np.concatenate([s.slots for s in steps])

    def copy_slots(self, node: Node, above: Node, out: np.ndarray) -> None:
        """Write the slots of positions [above.end, node.end) to out[above.end : node.end]."""
        while node is not above:
            out[node.start : node.end] = node.slots
            node = _parent(node)

    # --- changing -----------------------------------------------------------------------------------------------

    def insert(self, start: Node, tokens: np.ndarray, slots: np.ndarray) -> tuple[Node, int]:
        """Make the tree hold `tokens`, int32 [n] from position 0 on, below `start`, a node that they lead to.

        slots: int32 [n]; those of the positions that the tree does not hold yet become the tree's. Returns the node
        that ends at position n, and how many leading tokens the tree held before (>= start.end).
        """
        node = self.match(start, tokens, len(tokens))
        held = node.end
        if held < len(tokens):
            self.evicted_paths.grown_over(held, node.digest, tokens[held:])
            # Copies: the tree must neither alias its callers' buffers nor keep them alive.
            leaf = Node(node, tokens[held:].copy(), slots[held : len(tokens)].copy(), len(tokens), self._clock)
            node.children[tokens.item(held)] = leaf
            leaf.rank = self._policy.rank(leaf, is_new=True)
            self.evictable += len(tokens) - held
            self.version += 1
            self.queue.offer(leaf)
            node = leaf
        return node, held

    def touch(self, node: Node) -> None:
        """Stamp the path from the root to `node` as used just now."""
        self._clock = stamp = self._clock + 1
        step: Node | None = node
        while step is not None:
            step.stamp = stamp
            step.rank = self._policy.rank(step, is_new=False)
            step = step.parent

    def confirm(self, node: Node) -> None:
        """Note that what the path down to `node` holds is finite."""
        while not node.confirmed:
            node.confirmed = True
            node = _parent(node)

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Lock the path down to `node` against eviction, once more; from below `above` on, where that is locked."""
        step: Node | None = node
        while step is not above:
            if step is None:
                raise BooksError("the lock of a path was to move to a node that is not below it")
            if step.locks == 0:
                self.pinned += len(step.tokens)
                self.evictable -= len(step.tokens)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Take back one `lock(node)`. A namespace that is left empty goes."""
        if node.locks == 0:
            raise BooksError("a node was unlocked more often than locked")
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                self.pinned -= len(step.tokens)
                self.evictable += len(step.tokens)
            step = step.parent
        self._retire(node)

    def evict(self, count: int, leaving: Callable[[Node], None] | None = None) -> list[np.ndarray]:
        """Drop unlocked leaves, in the order of the policy, until `count` slots or all there are have come free.

        Returns the dropped nodes' slots. Leaves go whole, so there may be more than `count`. leaving: is shown each
        node just before it goes.
        """
        dropped: list[np.ndarray] = []
        while count > 0 and (leaf := self.queue.take()) is not None:
            if leaving is not None:
                leaving(leaf)
            dropped.append(leaf.slots)
            count -= len(leaf.slots)
            self.evictable -= len(leaf.slots)
            parent = _parent(leaf)
            self.evicted_paths.note(parent.end, parent.digest, leaf.tokens)
            del parent.children[leaf.tokens.item(0)]
            leaf.parent = None
            self._retire(parent)
        if dropped:
            self.version += 1
        return dropped

    def cut(self, top: Node) -> list[np.ndarray]:
        """Take out `top` and all below it, none of which is locked; returns their slots."""
        if top.locks:
            raise BooksError(f"a node with {top.locks} locks was to be cut out of the tree")
        parent, gone = _parent(top), list(_below(top))
        self.queue.drop(set(gone))
        del parent.children[top.tokens.item(0)]
        top.parent = None
        self.evictable -= sum(len(node.slots) for node in gone)
        self.version += 1
        self._retire(parent)
        return [node.slots for node in gone]

    def _retire(self, node: Node) -> None:
        """What follows when `node` has perhaps become an unlocked leaf: it may be evicted, or is an empty namespace."""
        if node.locks or node.children:
            return
        if isinstance(node, Root):
            del self.roots[node.namespace]
        else:
            self.queue.offer(node)

    def _split(self, node: Node, length: int) -> Node:
        """Cut the edge of `node` after `length` tokens; returns the new upper node.

        `node` itself stays the lower part, so whoever holds it still holds the end of the same path; therefore all
        its locks go through the upper part as well. Both parts are copies: a view would keep the whole edge alive.
        """
        parent = _parent(node)
        upper = Node(parent, node.tokens[:length].copy(), node.slots[:length].copy(), node.start + length, node.stamp)
        upper.rank = node.rank
        upper.locks = node.locks
        upper.confirmed = node.confirmed
        parent.children[upper.tokens.item(0)] = upper
        node.parent = upper
        node.tokens = node.tokens[length:].copy()
        node.slots = node.slots[length:].copy()
        upper.children[node.tokens.item(0)] = node
        return upper

    # --- proving ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents before their children."""
        return _below(*self.roots.values())

    def audit(self) -> None:
        """Walk everything and raise BooksError, with what was found, unless the books are right."""
        pinned = evictable = 0
        inner: list[Node] = []
        for namespace, root in self.roots.items():
            if root.namespace != namespace or root.parent is not None or len(root.tokens) or root.end:
                raise BooksError(f"the root of namespace {namespace!r} is not a root of that name")
            if not root.locks and not root.children:
                raise BooksError(f"the empty namespace {namespace!r} was not dropped")
        for node in self.nodes():
            _audit_node(node, self._clock)
            if node.locks:
                pinned += len(node.slots)
            else:
                evictable += len(node.slots)
            if not isinstance(node, Root):
                inner.append(node)
        if (pinned, evictable) != (self.pinned, self.evictable):
            raise BooksError(
                f"the tree counts {self.pinned} pinned and {self.evictable} evictable slots, "
                f"but holds {pinned} and {evictable}"
            )
        self.queue.audit(inner)


def _below(*tops: Node) -> Iterator[Node]:
    """These nodes and all below them, parents before their children."""
    stack = list(tops)
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node


def _descend(node: Node, tokens: np.ndarray, limit: int) -> tuple[Node, int]:
    """Follow `tokens` down from `node`: the last node reached in whole, and how far into the next edge it goes on.

    Reads nothing of `tokens` beyond `limit` (<= len(tokens)).
    """
    position = node.end
    while position < limit:
        child = node.children.get(tokens.item(position))
        if child is None:
            break
        edge = child.tokens
        length = len(edge)
        if position + length > limit:
            length = limit - position
            edge = edge[:length]
        if length > 1:
            # The first tokens are equal (the child was found by it), so argmax 0 means that no position differs.
            same = int((edge != tokens[position : position + length]).argmax()) or length
        else:
            same = 1
        if position + same < child.end:
            return node, same
        node = child
        position = child.end
    return node, 0


def _child_at(node: Node, tokens: np.ndarray) -> Node:
    return node.children[tokens.item(node.end)]


def _latest_child(node: Node) -> Node | None:
    return max(node.children.values(), key=lambda child: child.stamp, default=None)


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise BooksError("a root, or a node that has left the tree, was used as a node of the tree")
    return node.parent


def _audit_node(node: Node, clock: int) -> None:
    if not isinstance(node, Root) and len(node.tokens) == 0:
        raise BooksError("a node's edge is empty")
    if len(node.tokens) != len(node.slots):
        raise BooksError(f"an edge has {len(node.tokens)} tokens but {len(node.slots)} slots")
    if node.stamp > clock:
        raise BooksError(f"a node has stamp {node.stamp}, which the clock ({clock}) has not reached")
    if node.locks < 0:
        raise BooksError(f"a node has {node.locks} locks")
    below = sum(child.locks for child in node.children.values())
    if node.locks < below:
        raise BooksError(f"a node has {node.locks} locks, but its children have {below}")
    for key, child in node.children.items():
        if child.parent is not node:
            raise BooksError("a child names another node as its parent")
        if len(child.tokens) and child.tokens.item(0) != key:
            raise BooksError(f"a child is filed under token {key}, but its edge begins with {child.tokens.item(0)}")
        if child.end != node.end + len(child.tokens):
            raise BooksError(f"a node ends at {child.end} instead of {node.end + len(child.tokens)}")
        if child.confirmed and not node.confirmed:
            raise BooksError("a node is confirmed, but its parent is not")
        if child.stamp > node.stamp:
            raise BooksError(f"a node (stamp {node.stamp}) is older than its child (stamp {child.stamp})")
