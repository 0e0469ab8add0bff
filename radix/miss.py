"""What the tree knows of the place where a prompt leaves it. It only reads, and in constant time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from .lease import Lease
from .node import Node
from .tree import RadixTree

SHOWN = 8  # tokens
_BRANCHES = 16  # newest ones among which the one used last is shown: a node may have very many
_OTHERS = 8  # newest other namespaces that are asked


@dataclass(frozen=True)
class Miss:
    """continuation: how the tree goes on there instead, int32, at most `SHOWN` ids; empty where it ends. evicted: it
    held what the prompt goes on with, and evicted it. elsewhere: how many of the tokens another namespace holds, where
    this one holds none; for the operator's eyes only, as it says what somebody else has sent."""

    continuation: np.ndarray
    evicted: bool
    elsewhere: int


def miss_at_end(tree: RadixTree, lease: Lease, tokens: np.ndarray) -> Miss:
    """Of a lease that ends in the tree, before the end of its sequence `tokens` (int32 [n], position 0 first)."""
    node = lease.node
    if node is None:
        return Miss(np.empty(0, dtype=np.int32), evicted=False, elsewhere=0)
    elsewhere = 0
    if lease.length == 0 and not node.children:
        others = islice((name for name in reversed(tree.roots) if name != lease.namespace), _OTHERS)
        elsewhere = max((tree.peek(name, tokens, len(tokens)) for name in others), default=0)
    evicted = tree.evicted_paths.had(lease.length, node.digest, tokens[lease.length :])
    return Miss(_continuation(node), evicted, elsewhere)


def _continuation(node: Node) -> np.ndarray:
    """The next tokens below a node, by the branches used last."""
    runs: list[np.ndarray] = []
    missing = SHOWN
    while missing > 0 and node.children:
        node = max(islice(reversed(node.children.values()), _BRANCHES), key=lambda child: child.stamp)
        runs.append(node.tokens[:missing])
        missing -= len(runs[-1])
    return np.concatenate(runs) if runs else np.empty(0, dtype=np.int32)
