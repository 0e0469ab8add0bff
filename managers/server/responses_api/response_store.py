"""The responses that a server keeps, to be read again and gone on from: in memory, bounded in number and in bytes, each
for a time after its last use.

One tenant's responses do not exist for another. What conversations have in common is kept once, and counted once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...wire.errors import InvalidRequest
from ...wire.requests import KnownTurn
from ..errors import UnknownResponse
from .response_objects import ResponseObject

Item = dict[str, Any]
_OVERHEAD = 1000  # bytes of a stored response beside its text


@dataclass(frozen=True)
class StoreLimits:
    """responses, size: at most so many, in so many bytes. seconds: a response is kept after its last use."""

    responses: int = 4096
    size: int = 256 * 2**20
    seconds: float = 30 * 24 * 3600.0


USUAL_LIMITS = StoreLimits()


@dataclass
class StoredTurn:
    """A conversation up to the end of one response. before: what it went on from. items: its own, first `inputs` of
    input, then of output. known: its tokens; `apart` where they do not begin with those of the turn before."""

    before: StoredTurn | None
    items: list[Item]
    inputs: int
    known: KnownTurn | None
    apart: bool
    users: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        tokens = 0 if self.known is None else len(self.known.prompt) + len(self.known.completion)
        self.size = len(msgspec.json.encode(self.items)) + tokens

    def conversation(self) -> list[Item]:
        """All its items, from the first turn on."""
        turns = list(self._back())
        return [item for turn in reversed(turns) for item in turn.items]

    def read_items(self) -> list[Item]:
        """The items that the response was made from: all but its own output."""
        earlier = self.before.conversation() if self.before is not None else []
        return [*earlier, *self.items[: self.inputs]]

    def tokens(self) -> list[KnownTurn]:
        """What is known of the conversation's tokens, turn by turn."""
        known: list[KnownTurn] = []
        for turn in self._back():
            if turn.known is None:
                return []
            known.append(turn.known)
            if turn.apart:
                break
        return known[::-1]

    def _back(self) -> Iterator[StoredTurn]:
        turn: StoredTurn | None = self
        while turn is not None:
            yield turn
            turn = turn.before


class EventLog:
    """The events of a response that is computed in the background, for readers of any number."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.size = 0
        self._over = False
        self._news = asyncio.Event()

    def add(self, payloads: Iterable[bytes], *, over: bool = False) -> None:
        for payload in payloads:
            self.events.append(payload)
            self.size += len(payload)
        self._over = self._over or over
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, number: int) -> list[bytes]:
        """The events behind this sequence number, as soon as there are any; none once there will be no more."""
        while len(self.events) <= number + 1 and not self._over:
            await self._news.wait()
        return self.events[number + 1 :]

    async def ended(self) -> None:
        """Once there will be no more events."""
        while not self._over:
            await self._news.wait()


@dataclass
class StoredResponse:
    """response: as it is, or was when it ended. log: of one in the background. task: computes it, until it ended."""

    tenant: str
    response: ResponseObject
    turn: StoredTurn | None = None
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    used: float = field(default_factory=time.monotonic)
    size: int = 0

    def ended_turn(self) -> StoredTurn:
        """What another response goes on from. Raises InvalidRequest while this one is running."""
        if self.turn is None:
            text = f"is {self.response.id!r}, which has not ended ({self.response.status})."
            raise InvalidRequest.about(("previous_response_id",), text)
        return self.turn


class ResponseStore:
    """Forgets what was used longest ago first. What is still running is never forgotten. May be read by any thread."""

    def __init__(self, limits: StoreLimits) -> None:
        self.size = 0
        self._limits = limits
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[Item, StoredTurn]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def get(self, tenant: str, response_id: str, field: str | None = None) -> StoredResponse:
        """The response, which counts as used now. Raises UnknownResponse. field: of a body, where the id stands."""
        with self._lock:
            self._expire()
            stored = self._stored.get((tenant, response_id))
            if stored is None:
                what = "Response" if field is None else "Previous response"
                raise UnknownResponse(f"{what} with id {response_id!r} not found.", field)
            stored.used = time.monotonic()
            self._stored.move_to_end((tenant, response_id))
            return stored

    def has(self, tenant: str, response_id: str) -> bool:
        with self._lock:
            self._expire()
            return (tenant, response_id) in self._stored

    def item(self, tenant: str, item_id: str, field: str) -> tuple[Item, StoredTurn]:
        """An item of any of the tenant's responses, and the turn that it is of. Raises UnknownResponse."""
        with self._lock:
            self._expire()
            found = self._items.get((tenant, item_id))
        if found is None:
            raise UnknownResponse(f"Item with id {item_id!r} not found.", field)
        return found

    def put(self, stored: StoredResponse) -> None:
        """Keep this, also again once it has changed; others are forgotten for it, or itself where it is too large."""
        with self._lock:
            key = (stored.tenant, stored.response.id)
            self._drop(key)
            self._stored[key] = stored
            stored.used = time.monotonic()
            stored.size = _OVERHEAD + len(msgspec.json.encode(stored.response)) + (stored.log.size if stored.log else 0)
            self.size += stored.size
            if stored.turn is not None:
                self._hold(stored.turn)
                for item in stored.turn.items:
                    self._items[stored.tenant, item["id"]] = item, stored.turn
            if stored.task is not None:
                self._tasks.add(stored.task)
                stored.task.add_done_callback(self._tasks.discard)
            self._expire()
            self._make_room()

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget it; what is running ends. Raises UnknownResponse."""
        with self._lock:
            stored = self.get(tenant, response_id)
            self._drop((tenant, response_id))
            if stored.task is not None:
                stored.task.cancel()

    async def close(self) -> None:
        """End what is running."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _expire(self) -> None:
        oldest = time.monotonic() - self._limits.seconds
        while (least := self._least_used()) is not None and least[1].used <= oldest:
            self._drop(least[0])

    def _make_room(self) -> None:
        while self.size > self._limits.size or len(self._stored) > self._limits.responses:
            least = self._least_used()
            if least is None:
                return
            self._drop(least[0])

    def _least_used(self) -> tuple[tuple[str, str], StoredResponse] | None:
        return next(((key, each) for key, each in self._stored.items() if each.task is None), None)

    def _hold(self, turn: StoredTurn | None) -> None:
        while turn is not None:
            turn.users += 1
            if turn.users > 1:
                return
            self.size += turn.size
            turn = turn.before

    def _drop(self, key: tuple[str, str]) -> None:
        stored = self._stored.pop(key, None)
        if stored is None:
            return
        self.size -= stored.size
        turn = stored.turn
        for item in turn.items if turn is not None else ():
            if self._items.get((stored.tenant, item["id"]), (None,))[0] is item:
                del self._items[stored.tenant, item["id"]]
        while turn is not None:
            turn.users -= 1
            if turn.users:
                return
            self.size -= turn.size
            turn = turn.before
