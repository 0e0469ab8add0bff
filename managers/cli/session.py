"""An engine for a command that waits for its user: the event loop runs only while there is something to compute."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...runtime.sampling.recommendation import OPENAI_DEFAULTS
from ..front.front import Front
from ..front.requests.params import to_submit
from ..front.requests.request_fields import GenerateRequest
from ..wire.answers import TextChunk
from ..wire.errors import InvalidRequest
from ..wire.logs import start_logging
from ..wire.options import EngineConfig
from .options import as_typed


class Session:
    """One engine in one terminal. Ctrl-C while it computes raises KeyboardInterrupt and aborts the request."""

    def __init__(self, runner: asyncio.Runner, front: Front) -> None:
        self._runner = runner
        self._front = front

    def print_completion(self, request: GenerateRequest) -> tuple[str, TextChunk]:
        """Print the completion's text as it comes, what the model thinks before it too; returns the text and the last
        chunk, which has the counts."""
        return self._runner.run(self._print_completion(request))

    async def _print_completion(self, request: GenerateRequest) -> tuple[str, TextChunk]:
        submit = to_submit(request, vocab_size=self._front.info.model.vocab_size, defaults=self._front.info.sampling)
        chunks: list[TextChunk] = []
        thinks = False
        async with self._front.stream(submit) as stream:
            async for chunk in stream:
                if chunk.reasoning:
                    print(chunk.reasoning if thinks else f"[thinking] {chunk.reasoning}", end="", flush=True)
                    thinks = True
                if chunk.text and thinks:
                    print("\n[answer]", end=" ")
                    thinks = False
                print(chunk.text, end="", flush=True)
                chunks.append(chunk)
        return "".join(chunk.text for chunk in chunks), chunks[-1]


def check_sampling(sampling: dict[str, Any]) -> None:
    """Raise InvalidRequest for options out of range, named as typed, before a model is loaded in vain."""
    try:
        to_submit(GenerateRequest(prompt="-", **sampling), vocab_size=1, defaults=OPENAI_DEFAULTS)
    except InvalidRequest as error:
        raise error.renamed(as_typed(sampling)) from None


@contextmanager
def session(config: EngineConfig) -> Iterator[Session]:
    """Start an engine and end it again. Raises ModelError, ConfigError or EngineDead where it cannot start."""
    start_logging("front", config.log_level)
    with asyncio.Runner() as runner:
        front = Front(config)
        try:
            runner.run(front.start())
            yield Session(runner, front)
        finally:
            runner.run(front.stop())
