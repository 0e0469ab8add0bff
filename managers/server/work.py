"""The work of one HTTP request: its streams from the front, merged, timed and counted, and ended with it.

However the request ends (answer, error, disconnect, shutdown), leaving `Work` aborts whatever is still running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import TracebackType

import msgspec

from ...runtime.errors import SapwoodError
from ..front.generation import Completion, collect
from ..front.streams import RequestStream
from ..wire.answers import CacheReport, Effort, TextChunk
from ..wire.errors import InvalidRequest
from ..wire.logs import logger
from ..wire.requests import Submit
from .access import salted
from .errors import answer_for
from .responses import note_moved
from .server_state import ServerState
from .usage import PromptDetails, Usage, completion_details

log = logger("server")

_TOLD = 4  # prompts of one request, and moved lines of one prompt, that the log names
_MERGE_AHEAD = 64  # chunks that wait between the streams of a batch and a client that reads slowly


class Work:
    """Async context manager around one HTTP request's submitted requests (several for a list of prompts)."""

    def __init__(
        self,
        state: ServerState,
        request_id: str,
        submits: list[Submit],
        label: str,
        renamed: Callable[[InvalidRequest, int], InvalidRequest] = lambda error, _: error,
    ) -> None:
        """label: what the log calls it. renamed: a refusal of submit i, in terms of the body that the client sent."""
        self.request_id = request_id
        self.error: Exception | None = None  # what ended a stream that had already begun
        self._state = state
        self._submits = [msgspec.structs.replace(each, namespace=salted(each.namespace)) for each in submits]
        self._label = label
        self._renamed = renamed
        self._stack = AsyncExitStack()
        self._streams: list[RequestStream] = []
        self._began = time.perf_counter()
        self._first: float | None = None
        self._last: dict[tuple[int, int], float] = {}
        self._prompts: dict[tuple[int, int], tuple[int, int]] = {}  # tokens, and how many of them were cached
        self._generated: dict[tuple[int, int], int] = {}  # all by (number of the submit, index of the sample)
        self._reasoning: dict[tuple[int, int], int] = {}
        self._efforts: dict[tuple[int, int], Effort] = {}
        self._caches: dict[int, CacheReport] = {}  # by number of the submit

    async def __aenter__(self) -> Work:
        """Submit everything. Raises InvalidRequest, Overloaded or EngineDead, and then leaves nothing running."""
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._state.opened(self.request_id, [each.request_id for each in self._submits]))
                for submit in self._submits:
                    self._streams.append(await stack.enter_async_context(self._state.front.stream(submit)))
                self._stack = stack.pop_all()
        except SapwoodError as error:
            self._report(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        self._report(error or self.error)

    def usage(self) -> Usage:
        """The counts so far; final once every stream has ended."""
        counted = [
            counts
            for (number, index), counts in self._prompts.items()
            if index == 0 or self._submits[number].score is not None
        ]
        prompt, cached = sum(tokens for tokens, _ in counted), sum(cached for _, cached in counted)
        completion = sum(self._generated.values())
        details = completion_details(self._efforts.values(), sum(self._reasoning.values()))
        return Usage(prompt, completion, prompt + completion, PromptDetails(cached), details)

    async def completions(self) -> list[list[Completion]]:
        """Read everything to its end: for every prompt its samples. Raises the first error of any of them."""
        if len(self._streams) == 1:
            return [await collect(self._counted(0))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(collect(self._counted(number))) for number in range(len(self._streams))]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def chunks(self) -> AsyncGenerator[tuple[int, TextChunk]]:
        """(number of the prompt, chunk), as they come. Raises the first error of any stream."""
        if len(self._streams) == 1:
            async for chunk in self._counted(0):
                yield 0, chunk
            return
        merged: asyncio.Queue[tuple[int, TextChunk | BaseException | None]] = asyncio.Queue(_MERGE_AHEAD)
        tasks = [asyncio.create_task(self._pump(number, merged)) for number in range(len(self._streams))]
        try:
            left = len(tasks)
            while left:
                number, item = await merged.get()
                if item is None:
                    left -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield number, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, number: int, merged: asyncio.Queue[tuple[int, TextChunk | BaseException | None]]) -> None:
        try:
            async for chunk in self._counted(number):
                await merged.put((number, chunk))
            await merged.put((number, None))
        except Exception as error:  # handed to the reader, who raises it
            await merged.put((number, error))

    async def _counted(self, number: int) -> AsyncIterator[TextChunk]:
        """The chunks of one stream, counted and timed on their way through."""
        try:
            async for chunk in self._streams[number]:
                self._count(number, chunk)
                yield chunk
        except InvalidRequest as error:  # only the tokenizer can know, for instance, that a prompt is too long
            raise self._renamed(error, number) from None

    def _count(self, number: int, chunk: TextChunk) -> None:
        metrics = self._state.metrics
        sample = (number, chunk.index)
        self._prompts[sample] = (chunk.prompt_tokens, chunk.cached_tokens)
        self._generated[sample] = chunk.completion_tokens
        self._reasoning[sample] = chunk.reasoning_tokens
        if chunk.effort is not None:
            self._efforts[sample] = chunk.effort
        if chunk.cache is not None:
            self._caches[number] = chunk.cache
            note_moved(chunk.cache.moved)
        if not chunk.token_ids:
            return
        now = time.perf_counter()
        before = self._last.get(sample)
        if before is not None:
            metrics.inter_token_seconds.observe((now - before) / len(chunk.token_ids))
        elif self._first is None:
            self._first = now - self._began
            metrics.first_token_seconds.observe(self._first)
        self._last[sample] = now

    def _report(self, error: BaseException | None) -> None:
        """One line in the log for the whole request."""
        seconds = time.perf_counter() - self._began
        self._state.metrics.request_seconds.observe(seconds)
        usage = self.usage()
        if error is None:
            outcome = "done"
        elif isinstance(error, asyncio.CancelledError | ConnectionError):
            outcome = "disconnected"
        else:
            outcome = f"{answer_for(error).detail.code} ({error})"
        log.info(
            "%s %s %s: %d prompt tokens (%d cached%s), %d generated, %stotal %.3f s",
            self._label,
            self.request_id,
            outcome,
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            "".join(f"; {_told(each)}" for _, each in sorted(self._caches.items())[:_TOLD]),
            usage.completion_tokens,
            "" if self._first is None else f"first token {self._first:.3f} s, ",
            seconds,
        )


def _told(report: CacheReport) -> str:
    """Where a prompt left the cached path, and why, without a word of what anybody sent."""
    place = "" if report.message is None else f" in message {report.message} ({report.role})"
    other = f", {report.elsewhere} tokens are cached under another salt" if report.elsewhere else ""
    moved = "".join(f", {each.rule} {'moved' if each.to is not None else 'dropped'}" for each in report.moved[:_TOLD])
    return f"left the cached path at {report.position}{place}: {report.reason}{other}{moved}"
