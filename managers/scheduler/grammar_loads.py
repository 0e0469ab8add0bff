"""Where requests wait until the worker has loaded their grammar, so that loading never holds up a step."""

from __future__ import annotations

from collections import OrderedDict

from ..wire.steps import GrammarReady, PrepareGrammar
from .request import Request

REMEMBERED = 128  # grammars taken to be loaded still; the worker keeps more


class GrammarLoads:
    """Orders each grammar once, and keeps the requests that wait for it."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[Request]] = {}
        self._orders: list[PrepareGrammar] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def is_ready(self, request: Request) -> bool:
        """Whether a request can run now; else it waits here until `arrived` gives it back, or is removed."""
        grammar = request.grammar
        if grammar is None:
            return True
        if grammar.key in self._loaded:
            self._loaded.move_to_end(grammar.key)
            return True
        if grammar.key not in self._waiting:
            self._waiting[grammar.key] = []
            self._orders.append(PrepareGrammar(grammar))
        self._waiting[grammar.key].append(request)
        return False

    def take_orders(self) -> list[PrepareGrammar]:
        """What was ordered since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def arrived(self, message: GrammarReady) -> list[Request]:
        """The requests that waited for this grammar."""
        if not message.error:
            self._loaded[message.key] = None
            if len(self._loaded) > REMEMBERED:
                self._loaded.popitem(last=False)
        return self._waiting.pop(message.key, [])

    def remove(self, request: Request) -> bool:
        """Take a request out; False where it does not wait here."""
        waiting = self._waiting.get(request.grammar.key, []) if request.grammar is not None else []
        if request not in waiting:
            return False
        waiting.remove(request)
        return True
