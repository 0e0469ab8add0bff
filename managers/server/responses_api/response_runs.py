"""One response being computed: for a client that waits, or in the background; and what is kept of it afterwards.

However it ends, what was generated until then can be gone on from, where it is stored.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ....runtime.records import pack_ids
from ...wire.answers import TextChunk
from ...wire.errors import RequestAborted
from ...wire.requests import KnownTurn
from ..errors import Answer, answer_for
from ..work import Work
from .input_items import Conversation, item_kind
from .response_building import ResponseBuilder
from .response_objects import CustomCallItem, FunctionCallItem, MessageItem, ReasoningItem, ResponseObject
from .response_store import EventLog, ResponseStore, StoredResponse, StoredTurn
from .response_tools import in_namespace
from .stream_records import ResponseEvent

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def encoded(events: Iterable[ResponseEvent]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]


def with_ids(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Input items, not checked yet, those without an id with a new one."""

    def prefix(item: dict[str, Any]) -> str:
        return _PREFIXES.get(str(item_kind(item)), "item")

    return [item if item.get("id") else {**item, "id": f"{prefix(item)}_{uuid.uuid4().hex}"} for item in items]


def tokens_of(turns: Sequence[StoredTurn], messages: Sequence[dict[str, Any]]) -> list[KnownTurn]:
    """What is known of the tokens of a conversation whose sender refers to items of these turns, if of any. Calls count
    as they were generated only where the conversation is that of the turn from its beginning on."""
    for turn in turns:
        earlier = Conversation()
        earlier.add(turn.conversation(), ())
        earlier.end()
        said = [message for message in messages if message["role"] not in ("system", "developer")]
        is_same = said[: len(earlier.messages)] == earlier.messages
        known = turn.tokens()
        return known if is_same else [msgspec.structs.replace(each, shows=[]) for each in known]
    return []


class ResponseRun:
    """Feed it the chunks in order; each step returns events as they travel. `keep` it once it has ended."""

    def __init__(
        self,
        work: Work,
        builder: ResponseBuilder,
        items: list[dict[str, Any]],
        before: StoredTurn | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        """items: of the input, each with an id. before: what the response goes on from. is_stopping: whether the
        server shuts down."""
        self.work = work
        self._builder = builder
        self._items = items
        self._before = before
        self._is_stopping = is_stopping
        self._prompt: bytes | None = None
        self._begun = False
        self._is_kept = False

    @property
    def response(self) -> ResponseObject:
        return self._builder.response

    def queued(self) -> list[bytes]:
        """The events before it is known whether it can be computed."""
        return encoded(self._builder.queue())

    def take(self, chunk: TextChunk) -> list[bytes]:
        if chunk.prompt_ids is not None:
            self._prompt = pack_ids(chunk.prompt_ids)
        first = [] if self._begun else self._builder.begin()
        self._begun = True
        return encoded([*first, *self._builder.take(chunk)])

    def finish(self) -> list[bytes]:
        return encoded(self._builder.finish(self.work.usage()))

    def fail(self, answer: Answer) -> list[bytes]:
        return encoded(self._builder.fail(answer, self.work.usage()))

    def cancel(self) -> None:
        self._builder.cancel(self.work.usage())

    def keep(self, store: ResponseStore, tenant: str, log: EventLog | None = None) -> None:
        """Store what has come of it, once, if anything has begun."""
        if self._is_kept or not (self._begun or log is not None):
            return
        self._is_kept = True
        if self.response.status in ("in_progress", "queued"):
            self.cancel()
        store.put(StoredResponse(tenant, self.response, self._turn(), log))

    def _turn(self) -> StoredTurn:
        output = [msgspec.to_builtins(item) for item in self.response.output]
        known, apart = None, True
        if self._prompt is not None:
            prompt, before = self._prompt, b"".join(each.prompt + each.completion for each in self._tokens_before())
            if before and prompt.startswith(before):
                prompt, apart = prompt[len(before) :], False
            known = KnownTurn(prompt, pack_ids(self._builder.token_ids), self._shows())
        return StoredTurn(self._before, [*self._items, *output], len(self._items), known, apart)

    def _tokens_before(self) -> list[KnownTurn]:
        return self._before.tokens() if self._before is not None else []

    def _shows(self) -> list[str]:
        """Where the response called tools: what any writing of it has to show, thoughts, text and the tools' names."""
        shows: list[str] = []
        for item in self.response.output:
            if isinstance(item, MessageItem | ReasoningItem):
                shows += [part.text.strip() for part in item.content]
            else:
                shows.append(in_namespace(item.namespace or None, item.name))
        calls = any(isinstance(item, FunctionCallItem | CustomCallItem) for item in self.response.output)
        return shows if calls else []

    # --- in the background -------------------------------------------------------------------------------------------

    def start(self, store: ResponseStore, tenant: str) -> StoredResponse:
        """Go on without anybody who waits; the work has been entered."""
        log = EventLog()
        log.add(self.queued())
        task = asyncio.create_task(self._in_background(store, tenant, log))
        stored = StoredResponse(tenant, self.response, None, log, task)
        store.put(stored)
        return stored

    async def _in_background(self, store: ResponseStore, tenant: str, log: EventLog) -> None:
        response_id = self.response.id
        error: BaseException | None = None
        last: list[bytes] = []
        try:
            async for _, chunk in self.work.chunks():
                log.add(self.take(chunk))
                if store.has(tenant, response_id):
                    store.get(tenant, response_id).response = self._builder.so_far()
            last = self.finish()
        except (asyncio.CancelledError, RequestAborted) as raised:
            error = raised
            self.cancel()
        except Exception as raised:
            error = raised
            last = self.fail(answer_for(raised, stopping=self._is_stopping()))
        finally:
            if store.has(tenant, response_id):  # it may have been deleted
                log.add(last)
                self.keep(store, tenant, log)
            log.add((), over=True)
            await self.work.__aexit__(None if error is None else type(error), error, None)
