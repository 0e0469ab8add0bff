"""Frames between the processes: what arrives, what is dropped, and that every kind of message survives the trip."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from sapwood.managers.wire import inboxes
from sapwood.managers.wire import sockets as wire
from sapwood.managers.wire.inboxes import ToTokenizer, ToWorker
from sapwood.managers.wire.lifecycle import Limits, Shutdown
from sapwood.managers.wire.requests import Abort
from sapwood.managers.wire.sockets import AsyncInbox, Inbox, Link, Outbox
from sapwood.runtime.records import Message, pack_ids, unpack_ids


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link.create()
    yield link
    link.remove()


def test_messages_arrive_in_order(link: Link) -> None:
    inbox: Inbox[Any] = Inbox(link, "tokenizer", ToTokenizer)
    outbox = Outbox(link, "tokenizer")
    sent = [Limits(i) for i in range(100)]
    for message in sent:
        outbox.send(message)
    received: list[Any] = []
    while len(received) < len(sent):
        received += inbox.drain(5)
    assert received == sent
    assert inbox.receive(0) is None
    assert inbox.drain(0.01) == []


async def test_an_async_inbox_receives_the_same(link: Link) -> None:
    inbox: AsyncInbox[Any] = AsyncInbox(link, "tokenizer", ToTokenizer)
    outbox = Outbox(link, "tokenizer")
    outbox.send(Abort("a"))
    assert await asyncio.wait_for(inbox.receive(), 5) == Abort("a")
    inbox.close()


def test_an_outbox_waits_for_nobody(link: Link) -> None:
    """What is sent before the other side exists arrives once it does."""
    outbox = Outbox(link, "worker")
    for _ in range(5000):
        outbox.send(Shutdown())
    inbox: Inbox[Any] = Inbox(link, "worker", ToWorker)
    received = 0
    while received < 5000:
        received += len(inbox.drain(5))


def test_a_message_of_another_inbox_is_dropped_and_counted(link: Link) -> None:
    inbox: Inbox[Any] = Inbox(link, "worker", ToWorker)
    outbox = Outbox(link, "worker")
    outbox.send(Abort("this is not the worker's business"))
    outbox.send(Shutdown())
    assert inbox.receive(5) == Shutdown()
    assert inbox.dropped == 1


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_no_frame_breaks_the_codec(frames: list[bytes]) -> None:
    codec: wire._Codec[Any] = wire._Codec(b"key", inboxes.ToFront)
    assert codec.decode(frames) is None
    assert codec.decode([b"key", *frames[:1]]) is None or frames
    assert codec.dropped >= 1


def test_the_link_travels_through_the_environment_and_no_further(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.ENVIRONMENT, link.to_environment())
    assert Link.from_environment() == link
    assert wire.ENVIRONMENT not in os.environ


def test_a_link_without_ipc_has_loopback_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda feature: False)
    link = Link.create()
    link.remove()
    assert len(set(link.addresses.values())) == 4
    assert all(address.startswith("tcp://127.0.0.1:") for address in link.addresses.values())


def test_a_directory_too_deep_for_a_socket_holds_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    link = Link.create()
    assert all(address.startswith("tcp://127.0.0.1:") for address in link.addresses.values())
    link.remove()
    assert list(deep.iterdir()) == []


def every_message() -> list[type]:
    unions = (inboxes.ToTokenizer, inboxes.ToScheduler, inboxes.ToWorker, inboxes.ToFront)
    return sorted({kind for union in unions for kind in get_args(union)}, key=lambda kind: kind.__name__)


def sample_of(annotation: Any) -> Any:
    """A value of this type, with something in every list and dictionary."""
    origin, arguments = getattr(annotation, "__origin__", None), get_args(annotation)
    if origin is list:
        return [sample_of(arguments[0])]
    if origin is dict:
        return {sample_of(arguments[0]): sample_of(arguments[1])}
    if arguments:  # a union, or a literal
        if not isinstance(arguments[0], type) and not get_args(arguments[0]):
            return arguments[0]
        return sample_of(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        fields = msgspec.structs.fields(annotation)
        if hasattr(annotation, "__post_init__"):  # it checks itself: its defaults pass
            fields = [field for field in fields if field.required]
        return annotation(**{field.name: sample_of(field.type) for field in fields})
    return {str: "é", int: 2**62, float: 0.1, bool: True, bytes: b"\x00\xff", Any: {"a": [1, None]}}[annotation]


@pytest.mark.parametrize("kind", every_message())
def test_every_message_survives_the_trip(kind: type) -> None:
    message = sample_of(kind)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message | kind) == message


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_ids_come_back(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)).tolist() == ids
    assert unpack_ids(pack_ids(np.array(ids, dtype=np.int64)[::-1])).tolist() == ids[::-1]
