"""The log: one line for each request, however it ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sapwood.managers.wire.errors import Overloaded, RequestFailed


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="sapwood.server")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "sapwood.server"]


async def test_a_request_is_one_line_with_its_counts_and_times(client, lines):
    await client.post("/v1/completions", {"prompt": ["a", "b"], "request_id": "mine", "user": "a\nb"})
    [line] = lines()
    assert line.startswith(
        "completions user='a\\nb' mine done: 14 prompt tokens (6 cached), 20 generated, first token "
    )


async def test_errors_and_disconnects_are_told_apart(client, front, lines, eventually):
    front.failure = (2, RequestFailed("The logits were not finite."))
    await client.events("/generate", {"prompt": "a"})
    front.failure, front.refusal = None, Overloaded("The queue is full.")
    await client.post("/generate", {"prompt": "a"})
    front.refusal = None
    front.gate.clear()
    task = asyncio.create_task(client.post("/generate", {"prompt": "a"}))
    await eventually(lambda: front.open)
    task.cancel()
    await eventually(lambda: len(lines()) == 3)
    assert "request_failed (The logits were not finite.): 7 prompt tokens (3 cached), 2 generated" in lines()[0]
    assert "overloaded (The queue is full.): 0 prompt tokens" in lines()[1]
    assert " disconnected: 0 prompt tokens (0 cached), 0 generated, total " in lines()[2]
