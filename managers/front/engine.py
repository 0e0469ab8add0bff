"""`Engine`: a model as a Python object, run by the same processes as the server, behind a front in its own thread.

It must never need the caller to have an event loop, a main guard or the main thread.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from ...runtime.errors import SapwoodError
from ..wire.answers import TextChunk
from ..wire.errors import InvalidRequest
from ..wire.questions import Stats
from ..wire.requests import Submit
from .front_thread import FrontThread
from .generation import Generation, Score, collect
from .keyword_options import config_from
from .requests.bodies import struct_from
from .requests.params import score_to_submit, to_submit
from .requests.render import Rendering, RenderRequest, render_to_chat
from .requests.request_fields import GenerateRequest, ScoreRequest
from .startup import FrontInfo
from .streams import RequestStream

T = TypeVar("T")
Messages = list[dict[str, Any]]
Prompt = str | Sequence[str | int | list[int]]


class Engine:
    """A model that is ready to complete and to score text; shut it down, or use it in a `with` statement.

        with Engine("smollm2") as engine:
            print(engine.generate("The capital of France is", max_tokens=8, temperature=0).text)

    Every method may be called from any thread; the async twins (`agenerate`, `astream`, `ascore`) from any event loop.
    Keyword arguments of a request are the fields of `GenerateRequest` (or `ScoreRequest`) in `request_fields`.
    What a request does not say of sampling is as the model recommends (`info.sampling`), each field by itself;
    `sampling_defaults="openai"` is temperature 1 and nothing else.

    Errors: ConfigError and ModelError from the constructor; InvalidRequest, Overloaded, RequestFailed, RequestAborted
    from a request; EngineDead from everything, once the engine was shut down or one of its processes died.
    """

    def __init__(self, model: str | Path = "smollm2", **options: Any) -> None:
        """Start the engine; returns when it can serve.

        model: "smollm2", a .gguf file, a Hugging Face directory, or a hub id. options: see `managers.wire.options`;
        `log_level` is "warning" unless given.
        """
        config = config_from({"log_level": "warning", **options, "model": str(model)})
        self._front = FrontThread(config)
        self._finalizer = weakref.finalize(self, self._front.close)

    @property
    def info(self) -> FrontInfo:
        """The model, the context, and what the start was spent on."""
        return self._front.info

    def shutdown(self) -> None:
        """End all processes; what is still running ends with RequestAborted. May be called more than once."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"Engine({self._front.front.config.model!r})"

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- complete --------------------------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: str | list[int] | None = None, *, messages: Messages | None = None, **params: Any
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, return_exceptions: Literal[True], **params: Any
    ) -> list[Generation | SapwoodError]: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, return_exceptions: Literal[False] = False, **params: Any
    ) -> list[Generation]: ...
    @overload
    def generate(self, *, messages: Sequence[Messages], **params: Any) -> list[Generation]: ...

    def generate(
        self, prompt: Any = None, *, messages: Any = None, return_exceptions: bool = False, **params: Any
    ) -> Any:
        """Complete a prompt or a conversation, or a list of either.

        prompt: a string or a list of token ids is one prompt and gives one Generation. Any other list is a batch of
            prompts, each a string, a list of token ids, or a list mixing both; it gives a list in the same order.
        messages: one conversation (a list of dicts), or a batch of them (a list of lists).
        params: max_tokens (128 for a prompt, what the context leaves for messages), temperature (1.0; 0 is greedy),
            top_k, top_p, min_p, seed, n, stop (a string or several), logprobs, …; `GenerateRequest` explains them all.

        The items of a batch run side by side. Where some fail, the first one's error is raised after all have ended;
        with `return_exceptions` every failed item's error stands in its place instead.
        """
        return self._front.call(self._generate(prompt, messages, return_exceptions, params))

    @overload
    async def agenerate(
        self, prompt: str | list[int] | None = None, *, messages: Messages | None = None, **params: Any
    ) -> Generation: ...
    @overload
    async def agenerate(
        self, prompt: Sequence[Prompt], *, return_exceptions: Literal[True], **params: Any
    ) -> list[Generation | SapwoodError]: ...
    @overload
    async def agenerate(
        self, prompt: Sequence[Prompt], *, return_exceptions: Literal[False] = False, **params: Any
    ) -> list[Generation]: ...
    @overload
    async def agenerate(self, *, messages: Sequence[Messages], **params: Any) -> list[Generation]: ...

    async def agenerate(
        self, prompt: Any = None, *, messages: Any = None, return_exceptions: bool = False, **params: Any
    ) -> Any:
        """`generate` for an event loop. Cancelling it aborts the requests."""
        return await self._front.acall(self._generate(prompt, messages, return_exceptions, params))

    def generate_stream(
        self, prompt: Prompt | None = None, *, messages: Messages | None = None, **params: Any
    ) -> ChunkIterator:
        """Complete one prompt (a list is one prompt here) or conversation, chunk by chunk as text is generated.

        Closing or dropping the iterator before its end, as leaving a `for` loop over it does, aborts the request.
        """
        submit = self._submit(prompt, messages, params)
        return ChunkIterator(self._front, self._front.call(self._open(submit)))

    def astream(
        self, prompt: Prompt | None = None, *, messages: Messages | None = None, **params: Any
    ) -> AsyncChunkIterator:
        """`generate_stream` for an event loop: an async iterator. The request is sent at its first step."""
        submit = self._submit(prompt, messages, params)
        return AsyncChunkIterator(self._front, submit)

    # --- score -----------------------------------------------------------------------------------------------------

    def score(self, prompt: Prompt, continuations: Sequence[str | list[int]], **params: Any) -> list[Score]:
        """How likely each continuation of the prompt is: per-token natural log-probabilities and their sum."""
        return self._front.call(self._score(prompt, continuations, params))

    async def ascore(self, prompt: Prompt, continuations: Sequence[str | list[int]], **params: Any) -> list[Score]:
        """`score` for an event loop."""
        return await self._front.acall(self._score(prompt, continuations, params))

    # --- render ----------------------------------------------------------------------------------------------------

    def render(self, messages: Messages, **params: Any) -> Rendering:
        """The prompt that the model's chat template makes of a conversation, and its text.

        params: the other fields of `front.requests.render.RenderRequest`, among them add_generation_prompt and tools.
        """
        return self._front.call(self._render(messages, params))

    async def arender(self, messages: Messages, **params: Any) -> Rendering:
        """`render` for an event loop."""
        return await self._front.acall(self._render(messages, params))

    # --- control ---------------------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> bool:
        """End an open request, which then raises RequestAborted; False where no request of this id is open."""

        async def abort() -> bool:
            return self._front.front.abort(request_id)

        return self._front.call(abort())

    def flush_cache(self) -> int:
        """Forget every cached prefix that is not in use; how many tokens that freed."""
        return self._front.call(self._front.front.flush_cache())

    def stats(self) -> Stats:
        """The scheduler's books and counters, now."""
        return self._front.call(self._front.front.stats())

    # --- inside ----------------------------------------------------------------------------------------------------

    def _submit(self, prompt: Any, messages: Any, params: dict[str, Any]) -> Submit:
        request = struct_from({**params, "prompt": prompt, "messages": messages}, GenerateRequest)
        info = self.info
        return to_submit(request, vocab_size=info.model.vocab_size, defaults=info.sampling, reasoning=info.reasoning)

    async def _open(self, submit: Submit) -> RequestStream:
        return self._front.front.stream(submit)

    async def _one(self, prompt: Any, messages: Any, params: dict[str, Any]) -> Generation:
        submit = self._submit(prompt, messages, params)
        async with self._front.front.stream(submit) as stream:
            return Generation(request_id=submit.request_id, completions=await collect(stream))

    async def _generate(self, prompt: Any, messages: Any, return_exceptions: bool, params: dict[str, Any]) -> Any:
        if prompt is not None and messages is not None:
            raise InvalidRequest("Give exactly one of prompt and messages.", "prompt")
        batch = _prompts(prompt) if messages is None else _conversations(messages)
        if batch is None:
            return await self._one(prompt, messages, params)
        if params.get("request_id") is not None:
            raise InvalidRequest("request_id names one request; it has no meaning for a batch.", "request_id")
        samples = n if isinstance(n := params.get("n"), int) and n > 0 else 1
        # No more at once than may wait in the queue, so that a batch of any size gets through.
        places = asyncio.Semaphore(max(1, self._front.front.config.max_queue // samples))

        async def item(each: Any) -> Generation | SapwoodError:
            async with places:
                try:
                    return await self._one(*((each, None) if messages is None else (None, each)), params)
                except SapwoodError as error:
                    return error

        results = await asyncio.gather(*map(item, batch))
        failed = next((result for result in results if isinstance(result, SapwoodError)), None)
        if failed is not None and not return_exceptions:
            raise failed
        return results

    async def _score(self, prompt: Any, continuations: Any, params: dict[str, Any]) -> list[Score]:
        if isinstance(continuations, str):
            text = f"continuations must be a list; for a single one write [{continuations!r}]"
            raise InvalidRequest(f"{text}.", "continuations")
        request = struct_from({**params, "prompt": prompt, "continuations": continuations}, ScoreRequest)
        submit = score_to_submit(request, vocab_size=self.info.model.vocab_size)
        async with self._front.front.stream(submit) as stream:
            return [Score.of(completion) for completion in await collect(stream)]

    async def _render(self, messages: Any, params: dict[str, Any]) -> Rendering:
        request = struct_from({**params, "messages": messages}, RenderRequest)
        chat = render_to_chat(request, vocab_size=self.info.model.vocab_size)
        rendered = await self._front.front.render(chat)
        return Rendering(rendered.prompt, rendered.text)


class ChunkIterator(Iterator[TextChunk]):
    """The chunks of one request; also a context manager, which closes it."""

    def __init__(self, front: FrontThread, stream: RequestStream) -> None:
        self._front = front
        self._stream = stream
        self.request_id = stream.request_id

    def __next__(self) -> TextChunk:
        chunk = self._front.call(_next(self._stream))
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Stop reading; aborts the request if it has not ended."""
        self._front.call(_close(self._stream))

    def __enter__(self) -> ChunkIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncChunkIterator(AsyncIterator[TextChunk]):
    """The chunks of one request, for any event loop; also an async context manager, which closes it."""

    def __init__(self, front: FrontThread, submit: Submit) -> None:
        self._front = front
        self._submit = submit
        self._stream: RequestStream | None = None
        self.request_id = submit.request_id

    async def __anext__(self) -> TextChunk:
        if self._stream is None:
            self._stream = await self._front.acall(self._open())
        chunk = await self._front.acall(_next(self._stream))
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Stop reading; aborts the request if it has not ended."""
        if self._stream is not None:
            await self._front.acall(_close(self._stream))

    async def __aenter__(self) -> AsyncChunkIterator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _open(self) -> RequestStream:
        return self._front.front.stream(self._submit)


async def _next(stream: RequestStream) -> TextChunk | None:
    return await anext(stream, None)


async def _close(stream: RequestStream) -> None:
    stream.close()


def _prompts(prompt: Any) -> list[Any] | None:
    """The prompts of a batch; None where `prompt` is a single one."""
    if not isinstance(prompt, list | tuple) or not prompt or all(isinstance(item, int) for item in prompt):
        return None
    for i, item in enumerate(prompt):
        if isinstance(item, int):
            text = f"prompt[{i}] is a number among texts; one prompt that mixes both goes into a list of its own"
            raise InvalidRequest(f"{text}: [[…]].", "prompt")
    return list(prompt)


def _conversations(messages: Any) -> list[Any] | None:
    if isinstance(messages, list | tuple) and messages and all(isinstance(item, list | tuple) for item in messages):
        return list(messages)
    return None
