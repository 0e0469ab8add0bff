"""Decides what the next step computes: who decodes, who prefills how much, who enters, and who has to leave for it.

It keeps the books of slots as it plans; results are not its business.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...radix.prefix_cache import PrefixCache
from ..wire.prefixes import LoadPrefix
from .cache_miss import cache_miss
from .counters import Counters
from .loads import Loads
from .plan import PlanBuilder
from .request import Request
from .running import DECODE_RESERVE, RunningRequests, promise
from .speculation import Speculator
from .waiting_queue import WaitingQueue, is_aged

MAX_PARTIAL = 2  # prefills that may be under way at once; short ones that fit in what is left of a step do not count


@dataclass(frozen=True)
class Demand:
    """What a waiting request would take. tokens: to compute until its next one can be sampled. slots: of those that are
    available now, some for its completion among them."""

    tokens: int
    slots: int


class StepPlanner:
    """Plans steps from the queue and the running requests. All sizes are in tokens (= slots)."""

    def __init__(
        self,
        cache: PrefixCache,
        queue: WaitingQueue,
        running: RunningRequests,
        speculator: Speculator | None,
        counters: Counters,
        *,
        chunk_tokens: int,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._running = running
        self._speculator = speculator
        self._counters = counters
        self._chunk_tokens = chunk_tokens
        self.loads = Loads()  # who waits for what the tier has to load
        self._orders: list[LoadPrefix] = []

    def take_orders(self) -> list[LoadPrefix]:
        """What the worker must load, since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def loaded(self, key: str, error: str) -> None:
        """The worker has loaded what was ordered under this key, or cannot; who waited for it queues up."""
        self._cache.loaded(key, error)
        for request in self.loads.arrived(key):
            self._queue.add(request)

    def plan(self, *, nothing_in_flight: bool) -> PlanBuilder:
        """What the next step does; without entries where there is nothing to compute now."""
        builder = PlanBuilder()
        self._preempt()
        self._plan_decodes(builder)
        self._plan_prefills(builder)
        # running requests hold every slot and none can take another: only a retraction helps
        while not builder.entries and nothing_in_flight and len(self._running) > 1:
            self.retract(self._running.victim())
            self._plan_decodes(builder)
            self._plan_prefills(builder)
        return builder

    def retract(self, request: Request, *, keep: bool = True) -> None:
        """Take a request's row and slots away; it queues up first of its priority. With `keep`, what it computed stays
        in the tree, evictable."""
        self._running.leave(request, keep=keep)
        request.retracted = True
        self._queue.add(request)
        self._counters.retracted += 1

    # --- who leaves ------------------------------------------------------------------------------------------------

    def _preempt(self) -> None:
        """Retract running requests where others of a higher priority wait that could not enter otherwise.

        Nobody leaves in vain: neither where all who could leave are not enough, nor before the step has room for who
        waits. Equals never retract each other here.
        """
        highest = self._queue.highest_priority
        if highest is None or all(request.priority >= highest for request in self._running):
            return
        rows = slots = 0  # for those who enter
        budget = self._chunk_tokens
        for request in self._queue.in_order(self._cache):
            lower = self._running.below(request.priority)
            if not lower or budget <= 0 or request.steps_in_flight:
                return
            if self._must_load(request):
                continue
            if _ahead(request, [other for other in self._running if other.to_prefill]) >= MAX_PARTIAL:
                return
            request.drop_held()
            demand = self._demand(request)
            if not self._would_fit(demand, slots, lower):
                return
            while lower and (rows >= self._running.free_rows or demand.slots + slots > self._room()):
                self.retract(lower.pop(0))
            rows, slots, budget = rows + 1, slots + demand.slots, budget - demand.tokens

    def _would_fit(self, demand: Demand, slots: int, leaving: list[Request]) -> bool:
        """Whether a request fits beside others that take `slots`, were these to leave."""
        if len(leaving) == len(self._running) and not slots:
            return True
        leases = [request.lease for request in leaving if request.lease is not None]
        gained = self._cache.releasable(leases) + sum(map(promise, leaving))
        return demand.slots + slots <= self._room() + gained

    def _room(self) -> int:
        """Slots that are available and promised to nobody."""
        return self._cache.available - self._running.promised()

    # --- who decodes -----------------------------------------------------------------------------------------------

    def _plan_decodes(self, builder: PlanBuilder) -> None:
        """Every running stream gets its next token, before anything else: evict, then retract, to make room."""
        decodes = [request for request in self._running if request.decodes]
        while self._cache.available < sum(request.pending for request in decodes) and len(self._running) > 1:
            victim = self._running.victim()
            self.retract(victim)
            if victim in decodes:
                decodes.remove(victim)
        speculated = self._speculator.speculate(decodes, len(self._running)) if self._speculator is not None else {}
        if not speculated and all(request.pending == 1 for request in decodes):
            slots = self._cache.grow_each([request.lease for request in decodes if request.lease is not None])
            if slots is None:  # one request alone and not one slot: its door check makes this impossible
                raise RuntimeError(f"no slot for the only running request; the books: {self._cache!r}")
            for place, request in enumerate(decodes):
                builder.compute(request, slots[place : place + 1])
            return
        for request in decodes:
            assert request.lease is not None
            guesses = speculated.get(request)
            slots = self._cache.grow(request.lease, request.pending + (0 if guesses is None else len(guesses)))
            if slots is None:
                raise RuntimeError(f"no slot for the only running request; the books: {self._cache!r}")
            builder.compute(request, slots, guesses)

    # --- who prefills ----------------------------------------------------------------------------------------------

    def _plan_prefills(self, builder: PlanBuilder) -> None:
        """Share what the decodes left of the step's budget among prefills under way and new requests.

        The oldest prefill of the highest priority gets half before anyone else, so it always advances; short prompts
        need not wait for it.
        """
        budget = max(self._chunk_tokens - builder.tokens, self._chunk_tokens // 4, 1)
        partial = [request for request in self._running if request.to_prefill]
        partial.sort(key=lambda request: -request.priority)
        others_wait = len(self._queue) > 0 or len(partial) > 1
        if partial:
            budget -= self._prefill(builder, partial[0], (budget + 1) // 2 if others_wait else budget)
        budget = self._admit(builder, budget, partial)
        for request in partial:
            budget -= self._prefill(builder, request, budget)

    def _prefill(self, builder: PlanBuilder, request: Request, budget: int) -> int:
        """Compute up to `budget` more tokens of a request's prefill; returns how many.

        They enter the tree at once, and each share begins with what others have put there since the last one. So of
        several requests with one new prefix, each computes what none has yet, even within one step: nothing twice.
        """
        lease = request.lease
        assert lease is not None
        if request in builder.entries:  # its second share of this step must continue where the first one ended
            if self._cache.peek(request.namespace, request.tokens, request.publish_until) > lease.length:
                return 0  # someone else computes what comes next in this very step
        elif lease.length == lease.shared:
            self._adopted(request, self._cache.advance(lease, request.tokens, request.publish_until))
        count = min(request.to_prefill, budget, self._cache.available)
        if count <= 0:
            return 0
        if request.miss is None and request.index == 0:
            request.miss = cache_miss(self._cache, self._running, request)
        slots = self._cache.grow(lease, count)
        assert slots is not None
        builder.compute(request, slots)
        moved = self._cache.publish(lease, request.tokens[: min(lease.length, request.publish_until)])
        assert moved is None, "a prefill computed what the tree already had"
        return count

    # --- who enters ------------------------------------------------------------------------------------------------

    def _admit(self, builder: PlanBuilder, budget: int, partial: list[Request]) -> int:
        """Let waiting requests in while rows, slots and budget last; returns the budget left. `partial` grows."""
        admitted: list[Request] = []
        if budget > 0 and self._running.free_rows and len(self._queue):
            for request in self._queue.in_order(self._cache):
                if budget <= 0 or not self._running.free_rows:
                    break
                if request.steps_in_flight:  # just retracted; what it gains is still to come
                    break
                verdict = self._try_admission(request, budget, partial)
                if verdict == "no slots" or (verdict == "too long now" and is_aged(request)):
                    break
                if verdict != "admitted":
                    continue
                admitted.append(request)
                budget -= self._prefill(builder, request, budget)
                if request.to_prefill:
                    partial.append(request)
        self._queue.note_admitted(admitted)
        return budget

    def _try_admission(self, request: Request, budget: int, partial: list[Request]) -> str:
        """See whether a request fits, then lock what the tree has of it; "admitted": it has a lease and a row. Else the
        cache is as it was before: waiting is no use of a prefix."""
        if self._must_load(request):
            return "must load"
        request.drop_held()
        if _ahead(request, partial) >= MAX_PARTIAL and self._to_compute(request) > budget:
            return "too long now"
        if len(self._running) and self._demand(request).slots > self._room():
            return "no slots"
        self._queue.remove(request)
        limit = self._match_limit(request)
        lease = self._cache.open(request.namespace, request.tokens, limit)
        self._cache.restore(lease, request.tokens, limit)
        self._running.enter(request, lease)
        self._adopted(request, lease.length)
        return "admitted"

    def _to_compute(self, request: Request) -> int:
        """As `Demand.tokens`, without its cost."""
        limit = self._match_limit(request)
        matched = min(self._queue.match(request, self._cache), limit)
        return request.known - max(matched, self._cache.below(request.namespace, request.tokens, limit))

    def _demand(self, request: Request) -> Demand:
        tokens, limit = request.tokens, self._match_limit(request)
        matched, unlocked = self._cache.survey(request.namespace, tokens, limit)
        held = max(matched, self._cache.below(request.namespace, tokens, limit))
        to_come = min(request.tokens_to_come, DECODE_RESERVE)
        return Demand(request.known - held, request.known - matched + unlocked + to_come)

    def _match_limit(self, request: Request) -> int:
        """How many leading tokens may come from the cache; who starts again takes nothing that may not be finite."""
        if not request.retried:
            return request.match_limit
        return min(request.match_limit, self._cache.confirmed(request.namespace, request.tokens))

    def _must_load(self, request: Request) -> bool:
        """Whether the tier has to load some of a request's prefix first; it then waits for that instead of here."""
        key = self._cache.load(request.namespace, request.tokens, self._match_limit(request))
        if key is None:
            return False
        self._queue.remove(request)
        if self.loads.wait(key, request):
            self._orders.append(LoadPrefix(key))
        return True

    def _adopted(self, request: Request, tokens: int) -> None:
        """A running request's lease has got so many tokens that other work computed. After a retraction that may be its
        own work, which does not count."""
        if tokens and request.lease is not None:
            request.adopted_until = request.lease.length
        if not request.retracted:
            request.cached_tokens += tokens
            self._counters.cached_tokens += tokens


def _ahead(request: Request, partial: list[Request]) -> int:
    """How many of the prefills under way a request may not go before."""
    return sum(other.priority >= request.priority for other in partial)
