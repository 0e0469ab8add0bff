"""Questions that a child answers once: sent with a number, and the answer of that number is the result."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from ..wire.errors import RequestFailed
from ..wire.questions import Flushed, Rendered, Stats, Tokenized, TokenizerInfo


class Calls:
    """The questions that are open."""

    def __init__(self) -> None:
        self._serial = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, role: str, send: Callable[[int], None], seconds: float) -> Any:
        """The answer. send: sends the question, with the number it is given, to the child of this role.

        Raises RequestFailed where none comes within so many seconds.
        """
        call_id = next(self._serial)
        answer = self._open[call_id] = asyncio.get_running_loop().create_future()
        send(call_id)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise RequestFailed(f"The {role} did not answer within {seconds:g} seconds.") from None
        finally:
            self._open.pop(call_id, None)

    def take(self, answer: Stats | Flushed | Rendered | Tokenized | TokenizerInfo) -> None:
        """Hand an answer to whoever waits for it still."""
        call = self._open.get(answer.call_id)
        if call is not None and not call.done():
            call.set_result(answer)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Tell whoever waits that no answer comes."""
        for call in self._open.values():
            if not call.done():
                call.set_exception(error())
        self._open.clear()
