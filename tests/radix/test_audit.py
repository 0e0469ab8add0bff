"""The audit notices cooked books: each corruption below is one that a fault in the code could cause."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sapwood.radix.errors import BooksError
from sapwood.radix.lease import Lease
from sapwood.radix.node import Node, Root
from sapwood.radix.prefix_cache import PrefixCache


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


class Books:
    """A small cache with something in every state: two forks in the tree, one open lease with private slots."""

    def __init__(self) -> None:
        self.cache = PrefixCache(40)
        self.serve(ids(1, 2, 3, 4))
        self.serve(ids(1, 2, 5, 6))
        self.serve(ids(8, 9))
        self.lease: Lease = self.cache.open("", ids(1, 2, 3, 7), 3)
        self.cache.grow(self.lease, 2)
        self.spare = self.cache.open("", ids(8, 8), 1)

    def serve(self, tokens: np.ndarray) -> None:
        lease = self.cache.open("", tokens, len(tokens) - 1)
        self.cache.grow(lease, len(tokens) - lease.length)
        self.cache.close(lease, tokens)

    def node(self, *tokens: int) -> Node:
        """The node whose edge is `tokens`."""
        return next(node for node in self.cache.tree.nodes() if node.tokens.tolist() == list(tokens))

    @property
    def root(self) -> Root:
        return self.cache.tree.roots[""]


def free_slot_leaks(books: Books) -> None:
    books.cache.pool.allocate_one()


def private_slot_is_freed(books: Books) -> None:
    books.cache.pool.release(books.lease.slots[-1:])


def tree_slot_is_freed(books: Books) -> None:
    books.cache.pool.release(books.node(4).slots)


def free_list_names_a_slot_twice(books: Books) -> None:
    books.cache.pool._stack[0] = books.cache.pool._stack[1]


def free_list_names_no_slot(books: Books) -> None:
    books.cache.pool._stack[0] = 40


def slot_is_marked_free_but_is_not(books: Books) -> None:
    books.cache.pool._place[books.node(4).slots] = 0


def free_is_miscounted(books: Books) -> None:
    books.cache.pool.free += 1


def private_is_miscounted(books: Books) -> None:
    books.cache.private -= 1


def pinned_is_miscounted(books: Books) -> None:
    books.cache.tree.pinned += 1
    books.cache.tree.evictable -= 1


def two_nodes_hold_one_slot(books: Books) -> None:
    books.node(4).slots[0] = books.node(5, 6).slots[0]


def tree_and_lease_hold_one_slot(books: Books) -> None:
    books.node(4).slots[0] = books.lease.slots[-1]


def tree_holds_no_slot(books: Books) -> None:
    books.node(4).slots[0] = -1


def lock_is_lost(books: Books) -> None:
    books.node(1, 2).locks -= 1


def lock_is_left_behind(books: Books) -> None:
    books.cache.tree.lock(books.node(8))


def lock_is_negative(books: Books) -> None:
    books.node(4).locks = -1


def lease_is_forgotten(books: Books) -> None:
    books.cache.leases.remove(books.spare)


def lease_is_closed_but_listed(books: Books) -> None:
    books.spare.closed = True


def lease_sees_another_slot_than_the_tree(books: Books) -> None:
    books.lease.buffer[1] = books.node(9).slots[0]


def lease_shares_more_than_its_node(books: Books) -> None:
    books.lease.shared += 1
    books.cache.private -= 1


def lease_shares_more_than_it_has(books: Books) -> None:
    books.lease.shared = books.lease.length + 1


def lease_has_lost_its_node(books: Books) -> None:
    books.lease.node = None


def lease_is_on_an_evicted_node(books: Books) -> None:
    node = books.node(8)
    books.spare.node = Node(node.parent, node.tokens, node.slots, node.end, node.stamp)


def lease_is_in_another_namespace(books: Books) -> None:
    books.spare.namespace = "salt"


def ancestor_is_older_than_descendant(books: Books) -> None:
    books.node(1, 2).stamp = 0


def a_node_is_confirmed_on_top_of_one_that_is_not(books: Books) -> None:
    books.node(4).confirmed = True


def stamp_is_from_the_future(books: Books) -> None:
    books.root.stamp = 10**9


def edge_is_empty(books: Books) -> None:
    node = books.node(4)
    node.tokens = node.slots = ids()


def edge_has_too_few_slots(books: Books) -> None:
    node = books.node(5, 6)
    node.slots = node.slots[:1]


def child_is_filed_under_another_token(books: Books) -> None:
    parent = books.node(1, 2)
    parent.children[6] = parent.children.pop(5)


def two_children_begin_alike(books: Books) -> None:
    books.node(5, 6).tokens[0] = 3


def child_names_another_parent(books: Books) -> None:
    books.node(4).parent = books.root


def node_ends_elsewhere(books: Books) -> None:
    books.node(4).end += 1


def empty_namespace_stays(books: Books) -> None:
    books.cache.tree.root("salt")


def root_has_another_name(books: Books) -> None:
    books.root.namespace = "salt"


def leaf_is_not_queued(books: Books) -> None:
    leaf = books.node(4)
    leaf.queued = False
    books.cache.tree.queue._heap = [entry for entry in books.cache.tree.queue._heap if entry[2] is not leaf]


def leaf_is_marked_queued_but_is_not(books: Books) -> None:
    books.cache.tree.queue._heap.pop()


def leaf_is_queued_twice(books: Books) -> None:
    books.cache.tree.queue._heap.append(max(books.cache.tree.queue._heap))


def dead_node_is_queued(books: Books) -> None:
    leaf = books.node(4)
    dead = Node(leaf.parent, leaf.tokens, leaf.slots, leaf.end, leaf.stamp)
    books.cache.tree.queue.offer(dead)


def leaf_would_go_too_late(books: Books) -> None:
    heap = books.cache.tree.queue._heap
    heap[-1] = (heap[-1][2].stamp + 1, *heap[-1][1:])


def queue_is_out_of_order(books: Books) -> None:
    books.cache.tree.queue._heap.reverse()


CORRUPTIONS: list[Callable[[Books], None]] = [
    free_slot_leaks,
    private_slot_is_freed,
    tree_slot_is_freed,
    free_list_names_a_slot_twice,
    free_list_names_no_slot,
    slot_is_marked_free_but_is_not,
    free_is_miscounted,
    private_is_miscounted,
    pinned_is_miscounted,
    two_nodes_hold_one_slot,
    tree_and_lease_hold_one_slot,
    tree_holds_no_slot,
    lock_is_lost,
    lock_is_left_behind,
    lock_is_negative,
    lease_is_forgotten,
    lease_is_closed_but_listed,
    lease_sees_another_slot_than_the_tree,
    lease_shares_more_than_its_node,
    lease_shares_more_than_it_has,
    lease_has_lost_its_node,
    lease_is_on_an_evicted_node,
    lease_is_in_another_namespace,
    ancestor_is_older_than_descendant,
    stamp_is_from_the_future,
    a_node_is_confirmed_on_top_of_one_that_is_not,
    edge_is_empty,
    edge_has_too_few_slots,
    child_is_filed_under_another_token,
    two_children_begin_alike,
    child_names_another_parent,
    node_ends_elsewhere,
    empty_namespace_stays,
    root_has_another_name,
    leaf_is_not_queued,
    leaf_is_marked_queued_but_is_not,
    leaf_is_queued_twice,
    dead_node_is_queued,
    leaf_would_go_too_late,
    queue_is_out_of_order,
]


def test_the_untouched_books_are_right() -> None:
    books = Books()
    books.cache.audit()
    states = (books.cache.free, books.cache.private, books.cache.pinned, books.cache.evictable)
    assert all(states)
    assert sum(states) == 40


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_the_audit_notices(corrupt: Callable[[Books], None]) -> None:
    books = Books()
    corrupt(books)
    with pytest.raises(BooksError, match=r"\w+ \w+"):
        books.cache.audit()
