"""Where requests wait until the worker has loaded their grammar, so that loading never holds up a step."""

from __future__ import annotations

from collections import Counter, OrderedDict

from ..wire.grammars import ForgetGrammar, GrammarReady, PrepareGrammar
from .loads import Loads
from .request import Request

REMEMBERED = 128  # grammars that the worker holds at most, unless more are in use


class GrammarLoads:
    """Orders each grammar once, keeps the requests that wait for it, and says which ones the worker may forget: none
    that a request has which is not over."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._loaded: OrderedDict[str, None] = OrderedDict()  # last asked for at the end
        self._loads = Loads()
        self._orders: list[PrepareGrammar | ForgetGrammar] = []

    def __len__(self) -> int:
        return len(self._loads)

    def is_ready(self, request: Request) -> bool:
        """Whether a new request can run now; else it waits here until `arrived` gives it back, or it is over."""
        grammar = request.grammar
        if grammar is None:
            return True
        self._users[grammar.key] += 1
        if grammar.key in self._loaded:
            self._loaded.move_to_end(grammar.key)
            return True
        if self._loads.wait(grammar.key, request):
            self._orders.append(PrepareGrammar(grammar))
        return False

    def take_orders(self) -> list[PrepareGrammar | ForgetGrammar]:
        """What the worker is to be told, since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def arrived(self, message: GrammarReady) -> list[Request]:
        """The requests that waited for this grammar."""
        if not message.error:
            self._loaded[message.key] = None
            self._forget_unused()
        return self._loads.arrived(message.key)

    def leave(self, request: Request) -> bool:
        """A request is over; whether it waited here."""
        if request.grammar is None:
            return False
        self._users[request.grammar.key] -= 1
        self._users += Counter()  # drops what nobody uses
        self._forget_unused()
        return self._loads.remove(request)

    def _forget_unused(self) -> None:
        for key in [key for key in self._loaded if key not in self._users][: max(len(self._loaded) - REMEMBERED, 0)]:
            del self._loaded[key]
            self._orders.append(ForgetGrammar(key))
