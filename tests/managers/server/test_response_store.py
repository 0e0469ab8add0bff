"""The store of responses: its bounds hold whatever is put in, and what conversations share is counted once."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from sapwood.managers.server.errors import UnknownResponse
from sapwood.managers.server.responses_api.response_objects import ResponseObject
from sapwood.managers.server.responses_api.response_store import (
    EventLog,
    ResponseStore,
    StoredResponse,
    StoredTurn,
    StoreLimits,
)
from sapwood.managers.wire.requests import KnownTurn


def response(number: int) -> ResponseObject:
    return ResponseObject(id=f"resp_{number}", created_at=1, model="m", temperature=1.0, text={}, top_p=1.0)


def turn(number: int, before: StoredTurn | None = None, text: str = "x", apart: bool = False) -> StoredTurn:
    items = [{"id": f"i{number}", "content": text}, {"id": f"o{number}", "content": text}]
    return StoredTurn(before, items, 1, KnownTurn(b"p" * 4, b"c" * 8), apart or before is None)


def stored(number: int, of: StoredTurn | None, tenant: str = "t") -> StoredResponse:
    return StoredResponse(tenant, response(number), of)


def counted(store: ResponseStore) -> int:
    """What is held, counted anew: each response, and each turn that one of them stands on."""
    turns = {}
    for each in store._stored.values():
        at = each.turn
        while at is not None:
            turns[id(at)] = at.size
            at = at.before
    return sum(turns.values()) + sum(each.size for each in store._stored.values())


@pytest.mark.parametrize("seed", range(10))
def test_the_bounds_hold_and_the_books_balance(seed):
    rng = random.Random(seed)
    limits = StoreLimits(responses=12, size=30_000)
    store, turns = ResponseStore(limits), []
    for number in range(300):
        before = rng.choice([None, *turns[-6:]]) if turns else None
        turns.append(turn(number, before, "x" * rng.choice([0, 10, 1000, 9000])))
        store.put(stored(number, turns[-1]))
        if rng.random() < 0.2:
            store.put(stored(number, turns[-1]))
        for _ in range(rng.randrange(3)):
            with_id = f"resp_{rng.randrange(number + 1)}"
            if store.has("t", with_id):
                store.get("t", with_id)
                if rng.random() < 0.3:
                    store.delete("t", with_id)
        assert store.size == counted(store) <= limits.size
        assert len(store) <= limits.responses
    for each in list(store._stored):
        store.delete(*each)
    assert (store.size, store._items) == (0, {})


def test_what_was_used_longest_ago_goes_first():
    store = ResponseStore(StoreLimits(responses=2))
    for number in range(2):
        store.put(stored(number, turn(number)))
    store.get("t", "resp_0")
    store.put(stored(2, turn(2)))
    assert [store.has("t", f"resp_{i}") for i in range(3)] == [True, False, True]


def test_a_conversation_stays_whole_when_its_first_turns_are_forgotten():
    store = ResponseStore(StoreLimits(responses=1))
    last = None
    for number in range(5000):
        last = turn(number, last)
        store.put(stored(number, last))
    kept = store.get("t", "resp_4999").ended_turn()
    assert [item["id"] for item in kept.conversation()][:3] == ["i0", "o0", "i1"]
    assert len(kept.conversation()) == 10_000
    assert len(kept.tokens()) == 5000
    assert [item["id"] for item in kept.read_items()][-1] == "i4999"


def test_tokens_are_known_from_where_they_agree():
    first = turn(0)
    second = turn(1, first, apart=True)
    third = turn(2, second)
    assert len(third.tokens()) == 2
    unknown = StoredTurn(third, [], 0, None, True)
    assert turn(4, unknown).tokens() == []


def test_one_that_is_too_large_is_not_kept_and_costs_nobody_a_place_for_long():
    store = ResponseStore(StoreLimits(size=5000))
    store.put(stored(0, turn(0, text="x" * 9000)))
    assert not store.has("t", "resp_0")
    assert store.size == 0


def test_a_time_after_its_last_use_a_response_is_forgotten(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store = ResponseStore(StoreLimits(seconds=10))
    for number in range(2):
        store.put(stored(number, turn(number)))
    now[0] = 109.0
    store.get("t", "resp_1")
    now[0] = 110.5
    with pytest.raises(UnknownResponse):
        store.get("t", "resp_0")
    assert store.item("t", "o1", "x")[0]["id"] == "o1"
    with pytest.raises(UnknownResponse):
        store.item("t", "o0", "x")
    assert len(store) == 1


def test_tenants_with_one_id_have_each_their_own():
    store = ResponseStore(StoreLimits())
    store.put(stored(0, turn(0, text="a"), "a"))
    store.put(stored(0, turn(0, text="b"), "b"))
    store.delete("a", "resp_0")
    assert store.item("b", "o0", "x")[0]["content"] == "b"
    with pytest.raises(UnknownResponse):
        store.item("a", "o0", "x")


async def test_what_runs_is_not_forgotten_and_is_ended_with_the_store():
    store = ResponseStore(StoreLimits(responses=0))
    task = asyncio.create_task(asyncio.sleep(60))
    running = stored(0, None)
    running.task = task
    store.put(running)
    store.put(stored(1, turn(1)))
    assert [store.has("t", f"resp_{i}") for i in range(2)] == [True, False]
    await store.close()
    assert task.cancelled()


async def test_every_reader_of_a_log_gets_all_of_it():
    log = EventLog()

    async def read(number: int) -> list[bytes]:
        found: list[bytes] = []
        while events := await log.after(number + len(found)):
            found += events
            await asyncio.sleep(0)
        return found

    readers = [asyncio.create_task(read(number)) for number in (-1, 2, 50)]
    for i in range(20):
        log.add([b"%d" % i])
        if i % 3:
            await asyncio.sleep(0)
    log.add([], over=True)
    await log.ended()
    everything = [b"%d" % i for i in range(20)]
    assert [await each for each in readers] == [everything, everything[3:], []]
    assert await read(-1) == everything
    assert log.size == sum(map(len, everything))
