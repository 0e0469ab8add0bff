"""The radix tree by itself: splits, locks, stamps and what may not alias."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood.radix.errors import BooksError
from sapwood.radix.node import Node
from sapwood.radix.tree import RadixTree


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def hold(tree: RadixTree, *tokens: int, first_slot: int = 0) -> Node:
    slots = np.arange(first_slot, first_slot + len(tokens), dtype=np.int32)
    node, _ = tree.insert(tree.root(""), ids(*tokens), slots)
    return node


def match(tree: RadixTree, *tokens: int, limit: int = 99) -> Node:
    return tree.match(tree.root(""), ids(*tokens), limit)


def path(node: Node | None) -> list[Node]:
    nodes: list[Node] = []
    while node is not None:
        nodes.append(node)
        node = node.parent
    return nodes


def test_insert_says_how_many_leading_tokens_were_held() -> None:
    tree = RadixTree()
    root = tree.root("")
    held = [
        tree.insert(root, ids(*tokens), np.arange(base, base + len(tokens), dtype=np.int32))[1]
        for tokens, base in [((1, 2, 3), 0), ((1, 2, 3), 10), ((1, 2, 4, 5), 20), ((1, 2), 30), ((1, 2, 3, 6), 40)]
    ]
    assert held == [0, 3, 2, 2, 3]
    assert tree.evictable == 6
    tree.audit()


def test_a_split_keeps_the_slots_and_gives_the_upper_part_the_lock_count() -> None:
    tree = RadixTree()
    lower = hold(tree, 1, 2, 3, 4)
    tree.lock(lower)
    tree.lock(lower)
    upper = match(tree, 1, 2, 9)
    assert (upper.tokens.tolist(), upper.slots.tolist()) == ([1, 2], [0, 1])
    assert (lower.tokens.tolist(), lower.slots.tolist()) == ([3, 4], [2, 3])
    assert lower.parent is upper
    assert (upper.locks, lower.locks) == (2, 2)
    assert (tree.pinned, tree.evictable) == (4, 0)
    tree.audit()


def test_a_split_leaves_no_part_holding_on_to_the_whole_edge() -> None:
    tree = RadixTree()
    lower = hold(tree, *range(100))
    upper = match(tree, 0)
    for part in (upper.tokens, upper.slots, lower.tokens, lower.slots):
        assert part.base is None


def test_what_the_tree_holds_does_not_alias_the_callers_arrays() -> None:
    tree = RadixTree()
    tokens, slots = ids(1, 2, 3), ids(7, 8, 9)
    node, _ = tree.insert(tree.root(""), tokens, slots)
    tokens[:] = 0
    slots[:] = 0
    assert (node.tokens.tolist(), node.slots.tolist()) == ([1, 2, 3], [7, 8, 9])


def test_one_stamp_covers_a_whole_path() -> None:
    tree = RadixTree()
    hold(tree, 1, 2, 3)
    hold(tree, 1, 2, 4)
    hold(tree, 5)
    used = match(tree, 1, 2, 3)
    assert len({node.stamp for node in path(used)}) == 1
    assert all(node.stamp <= used.stamp for node in tree.nodes())


def test_peek_neither_splits_nor_stamps_nor_makes_a_namespace() -> None:
    tree = RadixTree()
    hold(tree, 1, 2, 3)
    before = [(node.tokens.tolist(), node.stamp) for node in tree.nodes()]
    assert tree.peek("", ids(1, 2, 9), 9) == 2
    assert tree.peek("", ids(1, 2, 3, 4), 9) == 3
    assert tree.peek("", ids(1, 2, 3), 1) == 1
    assert tree.peek("other", ids(1), 1) == 0
    assert [(node.tokens.tolist(), node.stamp) for node in tree.nodes()] == before
    assert list(tree.roots) == [""]


def test_locks_count_up_to_the_root_and_move_slots_between_pinned_and_evictable() -> None:
    tree = RadixTree()
    left = hold(tree, 1, 2, 3)
    right = hold(tree, 1, 2, 4, 5)
    tree.lock(left)
    assert (tree.pinned, tree.evictable) == (3, 2)
    tree.lock(right)
    assert (tree.pinned, tree.evictable) == (5, 0)
    assert [node.locks for node in path(left)] == [1, 2, 2]
    tree.unlock(left)
    assert (tree.pinned, tree.evictable) == (4, 1)
    tree.unlock(right)
    assert (tree.pinned, tree.evictable) == (0, 5)
    with pytest.raises(BooksError, match="more often than locked"):
        tree.unlock(left)


def test_a_lock_moves_down_only() -> None:
    tree = RadixTree()
    left, right = hold(tree, 1, 2), hold(tree, 3)
    with pytest.raises(BooksError, match="not below it"):
        tree.lock(left, above=right)


def test_leaves_go_whole_in_order_of_last_use_and_parents_after_their_last_child() -> None:
    tree = RadixTree()
    hold(tree, 1, 2, 3, first_slot=0)
    hold(tree, 1, 2, 4, first_slot=10)
    hold(tree, 5, 6, first_slot=20)
    match(tree, 1, 2, 3)
    assert [run.tolist() for run in tree.evict(1)] == [[12]]  # 1 2 | 4 is the oldest leaf
    assert [run.tolist() for run in tree.evict(1)] == [[20, 21]]
    assert [run.tolist() for run in tree.evict(2)] == [[2], [0, 1]]
    assert tree.evict(1) == []
    assert not tree.roots


def test_a_locked_path_is_not_evicted_and_its_leaf_is_once_unlocked() -> None:
    tree = RadixTree()
    node = hold(tree, 1, 2)
    tree.lock(node)
    assert tree.evict(9) == []
    tree.unlock(node)
    assert [run.tolist() for run in tree.evict(9)] == [[0, 1]]


def test_the_eviction_queue_stays_as_small_as_the_tree_however_often_leaves_are_used() -> None:
    tree = RadixTree()
    hold(tree, 1, 2)
    hold(tree, 1, 3)
    for _ in range(50):
        for token in (2, 3):
            node = match(tree, 1, token)
            tree.lock(node)
            tree.unlock(node)
    assert len(tree.queue) <= sum(1 for _ in tree.nodes())
    tree.audit()


def test_an_empty_namespace_goes_once_unlocked() -> None:
    tree = RadixTree()
    root = tree.root("salt")
    tree.lock(root)
    assert "salt" in tree.roots
    tree.unlock(root)
    assert not tree.roots


def test_the_version_follows_what_is_held_and_not_how_it_is_cut() -> None:
    tree = RadixTree()
    hold(tree, 1, 2, 3)
    first = tree.version
    match(tree, 1, 2)
    hold(tree, 1, 2, 3)
    assert tree.version == first
    hold(tree, 1, 2, 4)
    second = tree.version
    assert second != first
    tree.evict(1)
    assert tree.version != second


def test_long_and_short_edges_are_compared_at_every_position() -> None:
    for length in (1, 2, 3, 64, 65):
        tokens = list(range(1, length + 1))
        for differs in range(length):
            tree = RadixTree()
            hold(tree, *tokens)
            other = [*tokens[:differs], 0, *tokens[differs + 1 :]]
            assert tree.peek("", ids(*other), length) == differs
            assert match(tree, *other).end == differs
            tree.audit()
