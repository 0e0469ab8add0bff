"""The pool of KV slots as a stack of free slot indices. It must never hand out a slot twice nor take one back twice."""

from __future__ import annotations

import numpy as np

from .errors import BooksError

_TAKEN = -1


class SlotPool:
    """Slots 0 .. total - 1; all are free at first.

    The stack is last in, first out, and a released run comes out again in the order in which it went in, so that
    neighbouring positions of a sequence tend to live in neighbouring slots.
    """

    __slots__ = ("_place", "_stack", "free", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a slot pool needs at least one slot, not {total}")
        self.total = total
        self.free = total
        self._stack = np.arange(total - 1, -1, -1, dtype=np.int32)
        # _place[slot] is the slot's index in the stack while it is free: this is how a double free is noticed.
        self._place = np.arange(total - 1, -1, -1, dtype=np.int32)

    def allocate(self, count: int) -> np.ndarray:
        """Take `count` slots: int32 [count], owned by the caller. Raises BooksError where fewer are free."""
        rest = self.free - count
        if not 0 <= rest <= self.free:
            raise BooksError(f"{count} slots were asked of a pool with {self.free} free ones")
        slots = self._stack[rest : self.free][::-1].copy()
        self._place[slots] = _TAKEN
        self.free = rest
        return slots

    def allocate_one(self) -> int:
        """Take one slot; the cheap form of `allocate(1)` for decode."""
        if self.free == 0:
            raise BooksError("a slot was asked of a pool with no free ones")
        self.free -= 1
        slot = self._stack.item(self.free)
        self._place[slot] = _TAKEN
        return slot

    def release(self, slots: np.ndarray) -> None:
        """Give slots (int32 [n]) back. Where one is free, named twice or unknown: BooksError, and nothing changes."""
        count = len(slots)
        if count == 0:
            return
        if np.maximum.reduce(slots.view(np.uint32)) >= self.total:  # unsigned, so that negative ones are too large
            raise BooksError(f"slots outside 0..{self.total - 1} were released: {_outside(slots, self.total)}")
        place = self._place
        if np.maximum.reduce(place.take(slots)) != _TAKEN:
            raise BooksError(f"slots were released that are free already: {slots[place[slots] != _TAKEN].tolist()}")
        places = np.arange(self.free + count - 1, self.free - 1, -1, dtype=np.int32)
        place[slots] = places
        if place.take(slots).tobytes() != places.tobytes():  # of equal slots only the last kept its place
            place[slots] = _TAKEN
            raise BooksError("a slot was named twice in one release")
        self._stack[self.free : self.free + count] = slots[::-1]
        self.free += count

    def free_slots(self) -> np.ndarray:
        """A copy of the free slots, int32 [free], in no promised order."""
        return self._stack[: self.free].copy()

    def audit(self) -> None:
        """Raise BooksError unless stack and places agree and no slot is in the stack twice."""
        if not 0 <= self.free <= self.total:
            raise BooksError(f"{self.free} slots are free of {self.total}")
        stack = self._stack[: self.free]
        if len(stack) and (stack.min() < 0 or stack.max() >= self.total):
            raise BooksError(f"the free list holds slots outside 0..{self.total - 1}: {_outside(stack, self.total)}")
        if not np.array_equal(self._place[stack], np.arange(self.free)):
            raise BooksError("the free list and the places of its slots disagree (a slot is in it twice, or misplaced)")
        if np.count_nonzero(self._place != _TAKEN) != self.free:
            raise BooksError("a slot is marked free but is not in the free list")


def _outside(slots: np.ndarray, total: int) -> list[int]:
    return slots[(slots < 0) | (slots >= total)].tolist()
