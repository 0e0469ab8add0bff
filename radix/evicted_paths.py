"""A bounded memory of what was evicted: by the hash of the path above, so that noting and asking need no walk.

It only ever explains; nothing is decided by it, and it holds no slots.
"""

from __future__ import annotations

import numpy as np

_MASK = 2**64 - 1
_BASE = 0x9E3779B97F4A7C15 | 1
_BLOCK = 1024
MAX_PATHS = 4096
MAX_TOKENS = 2**20  # remembered in all
_SURE = 16  # tokens that tell one text from another


def _powers() -> list[int]:
    powers = [1]
    while len(powers) <= _BLOCK:
        powers.append(powers[-1] * _BASE & _MASK)
    return powers


_POWERS = _powers()
_DESCENDING = np.array(_POWERS[_BLOCK - 1 :: -1], dtype=np.uint64)


def digest_of(above: int, tokens: np.ndarray) -> int:
    """The hash of a path that goes on with `tokens` (int32 [n]) behind one of hash `above`, however it is cut up."""
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        added = int(_DESCENDING[_BLOCK - len(block) :].dot(block.astype(np.uint64)))  # modulo 2**64
        above = (above * _POWERS[len(block)] + added) & _MASK
    return above


def digest_of_root(namespace: str) -> int:
    """The hash of an empty path. Python hashes text differently in each process: nobody can aim at another's."""
    return hash(namespace) & _MASK


_Place = tuple[int, int, int]  # tokens above, their hash, first token of the edge


class EvictedPaths:
    """The edges that were evicted last, oldest forgotten first."""

    def __init__(self) -> None:
        self._edges: dict[_Place, np.ndarray] = {}
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._edges)

    def note(self, end: int, digest: int, tokens: np.ndarray) -> None:
        """An edge of `tokens` (kept, not copied) was evicted below a path of `end` tokens and this hash."""
        place = (end, digest, tokens.item(0))
        self._forget(place)
        self._edges[place] = tokens
        self._tokens += len(tokens)
        while len(self._edges) > MAX_PATHS or self._tokens > MAX_TOKENS:
            self._forget(next(iter(self._edges)))

    def grown_over(self, end: int, digest: int, tokens: np.ndarray) -> None:
        """The tree holds `tokens` below that path now; of edges that began so, only the rest is missing."""
        start = 0
        while start < len(tokens) and (edge := self._forget((end, digest, tokens.item(start)))) is not None:
            same = _common(edge, tokens[start:])
            start, end, digest = start + same, end + same, digest_of(digest, edge[:same])
            if same < len(edge):
                self.note(end, digest, edge[same:].copy())

    def had(self, end: int, digest: int, tokens: np.ndarray) -> bool:
        """Whether `tokens` (int32 [n]) were evicted below that path: all of them, or as many as tell one text from
        another, or up to where what was evicted ended. Looks at `_SURE` edges at most."""
        found, whole = 0, False
        while found < min(_SURE, len(tokens)):
            edge = self._edges.get((end + found, digest, tokens.item(found)))
            if edge is None:
                return whole
            same = _common(edge, tokens[found:])
            whole = same == len(edge)
            digest = digest_of(digest, edge[:same])
            found += same
        return found > 0

    def _forget(self, place: _Place) -> np.ndarray | None:
        edge = self._edges.pop(place, None)
        if edge is not None:
            self._tokens -= len(edge)
        return edge


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens are equal."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
