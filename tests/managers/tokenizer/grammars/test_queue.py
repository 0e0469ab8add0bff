"""Who is next for a grammar compiler."""

from __future__ import annotations

import asyncio

import pytest

from sapwood.managers.tokenizer.grammars.queue import AGED_TURNS, Asked, GrammarQueue


@pytest.fixture
async def queue() -> GrammarQueue[None]:
    return GrammarQueue()


def ask(queue: GrammarQueue[None], size: int, *, is_slow: bool = False) -> Asked[None]:
    asked: Asked[None] = Asked(asyncio.get_running_loop().create_future(), size, is_slow)
    queue.add(asked)
    return asked


async def test_the_small_go_first_and_the_slow_last(queue: GrammarQueue[None]) -> None:
    slow, large, small = ask(queue, 1, is_slow=True), ask(queue, 9), ask(queue, 3)
    assert [queue.take(with_slow=True) for _ in range(4)] == [small, large, slow, None]


async def test_nobody_waits_for_ever(queue: GrammarQueue[None]) -> None:
    large = ask(queue, 10**6)
    taken = []
    for _ in range(AGED_TURNS):
        ask(queue, 1)
        taken.append(queue.take(with_slow=True))
    assert large in taken


async def test_the_slow_wait_where_they_may_not_and_who_gave_up_is_forgotten(queue: GrammarQueue[None]) -> None:
    slow, gone = ask(queue, 1, is_slow=True), ask(queue, 1)
    assert queue.smallest_fresh == 1
    gone.waiting.cancel()
    assert queue.smallest_fresh is None
    assert queue.take(with_slow=False) is None
    assert queue.take(with_slow=True) is slow
