"""The slot pool: no slot is handed out twice, and none is taken back twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.radix.errors import BooksError
from sapwood.radix.slots import SlotPool


def ids(*slots: int) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


def test_a_new_pool_hands_out_neighbouring_slots_in_order() -> None:
    pool = SlotPool(5)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    assert pool.allocate_one() == 3
    assert pool.free == 1


def test_a_released_run_comes_out_again_in_its_order() -> None:
    pool = SlotPool(6)
    pool.allocate(6)
    pool.release(ids(4, 1, 3))
    assert pool.allocate(3).tolist() == [4, 1, 3]


def test_allocated_slots_belong_to_the_caller() -> None:
    pool = SlotPool(4)
    taken = pool.allocate(2)
    taken[:] = 3
    pool.audit()
    assert sorted(pool.allocate(2).tolist()) == [2, 3]


@pytest.mark.parametrize("count", [5, -1])
def test_more_slots_than_are_free_or_fewer_than_none_are_refused(count: int) -> None:
    pool = SlotPool(4)
    with pytest.raises(BooksError, match=f"{count} slots were asked"):
        pool.allocate(count)
    assert pool.free == 4


def test_one_slot_of_an_empty_pool_is_refused() -> None:
    pool = SlotPool(1)
    pool.allocate_one()
    with pytest.raises(BooksError):
        pool.allocate_one()


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        SlotPool(0)


@pytest.mark.parametrize(
    ("slots", "sentence"),
    [
        (ids(0, 3), r"free already: \[3\]"),
        (ids(0, 1, 0), "twice in one release"),
        (ids(0, 4), r"outside 0..3 were released: \[4\]"),
        (ids(-1), r"outside 0..3 were released: \[-1\]"),
    ],
)
def test_a_bad_release_raises_and_changes_nothing(slots: np.ndarray, sentence: str) -> None:
    pool = SlotPool(4)
    pool.allocate(3)
    with pytest.raises(BooksError, match=sentence):
        pool.release(slots)
    pool.audit()
    assert pool.free == 1
    pool.release(ids(2, 0, 1))
    assert sorted(pool.allocate(4).tolist()) == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40), st.integers(1, 12))
def test_every_slot_is_in_exactly_one_hand(steps: list[tuple[bool, int]], total: int) -> None:
    pool = SlotPool(total)
    taken: list[int] = []
    for takes, count in steps:
        if takes:
            count = min(count, pool.free)
            taken.extend([pool.allocate_one()] if count == 1 else pool.allocate(count).tolist())
        else:
            pool.release(ids(*taken[:count]))
            del taken[:count]
        pool.audit()
        assert sorted(taken + pool.free_slots().tolist()) == list(range(total))
        assert pool.free == total - len(taken)
