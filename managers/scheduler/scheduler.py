"""The scheduler's decisions, without its sockets: what enters, what each step computes, what leaves.

One rule makes its books simple: plans are executed strictly in the order they are made, so a slot planned in one step
is as good as computed for the next, and one freed while planning may be used again in the same plan. The books are
therefore kept at planning time; results only bring token ids. It must never wait, and never touch text or tensors.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...radix.prefix_cache import PrefixCache
from ...runtime.step import EntryResult, StepPlan, StepResult
from ..wire.answers import Finish, TokenChunk
from ..wire.grammars import ForgetGrammar, GrammarReady, PrepareGrammar
from ..wire.requests import TokenizedRequest
from .grammar_loads import GrammarLoads
from .plan import Entry, PlanBuilder
from .queue import WaitingQueue, is_aged
from .request import Request
from .results import accepted, failed, take_tokens
from .speculation import Speculator

STEPS_IN_FLIGHT = 2  # one that the worker computes, one that already waits for it
DECODE_RESERVE = 32  # slots kept for each running request's coming tokens when another one asks to be admitted
MAX_PARTIAL = 2  # prefills that may be under way at once; short ones that fit in what is left of a step do not count


@dataclass
class Counters:
    """What happened since the start, for the metrics."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    speculated_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0
    step_seconds: float = 0.0


class Scheduler:
    """Admits requests, plans steps, applies their results. All sizes are in tokens (= slots)."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_context: int,
        chunk_tokens: int,
        max_running: int,
        max_queue: int,
        schedule: str = "lpm",
        speculation: bool = True,
    ) -> None:
        self._cache = cache
        self._max_context = max_context
        self._chunk_tokens = chunk_tokens
        self._max_queue = max_queue
        self._queue = WaitingQueue(schedule)
        self._grammars = GrammarLoads()
        self._speculator = Speculator(cache) if speculation else None
        self._requests: dict[str, dict[int, Request]] = {}
        self._running: list[Request] = []  # in order of admission
        self._rows = list(range(max_running - 1, -1, -1))
        self._closed_rows: list[int] = []
        self._in_flight: deque[tuple[int, list[Entry]]] = deque()
        self._arrivals = 0
        self.counters = Counters()

    # --- what comes in ---------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._grammars)

    def submit(self, message: TokenizedRequest) -> list[TokenChunk]:
        """Queue a request. Returns its ending at once where it can never run or the queue is full."""
        request = Request(message, self._arrivals)
        self._arrivals += 1
        length, most = request.prompt_length, min(self._max_context, self._cache.total)
        if not 1 <= length <= most or length + request.sampling.max_tokens > most:
            text = f"{length} prompt tokens and {request.sampling.max_tokens} more do not fit; there are {most} slots"
            return [request.chunk(Finish("error", message=text))]
        if self.waiting >= self._max_queue:
            text = f"the queue is full: {self._max_queue} requests are waiting already"
            return [request.chunk(Finish("error", message=text, fault="load"))]
        self._requests.setdefault(request.request_id, {})[request.index] = request
        if self._grammars.is_ready(request):
            self._queue.add(request)
        self.counters.prompt_tokens += length
        return []

    def take_grammars(self) -> list[PrepareGrammar | ForgetGrammar]:
        """What the worker must be told to load, or to forget, since the last call."""
        return self._grammars.take_orders()

    def grammar_ready(self, message: GrammarReady) -> list[TokenChunk]:
        """The worker has loaded a grammar, or cannot: the requests that waited for it queue up, or end."""
        chunks = []
        for request in self._grammars.arrived(message):
            self._queue.add(request)
            if message.error:
                text = f"the constraint could not be loaded: {message.error}"
                chunks.append(self._finish(request, Finish("error", message=text)))
        return chunks

    def abort(self, request_id: str) -> None:
        """Drop a request with all its samples; unknown ids are those that have just finished."""
        for request in list(self._requests.get(request_id, {}).values()):
            self._release(request)
            self.counters.aborted += 1

    def stop(self, request_id: str, index: int) -> None:
        """End one sample whose text met a stop string."""
        request = self._requests.get(request_id, {}).get(index)
        if request is not None:
            self._release(request)
            self.counters.finished += 1

    def flush(self) -> int:
        """Forget everything that is not in use; returns the number of slots freed."""
        if self._speculator is not None:
            self._speculator.forget()
        return self._cache.flush()

    # --- planning --------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step, None where there is nothing to compute now or enough steps are in flight."""
        if len(self._in_flight) >= self._depth():
            return None
        builder = PlanBuilder()
        self._plan_decodes(builder)
        self._plan_prefills(builder)
        while not builder.entries and self._is_stuck():
            self._retract(self._victim())
            self._plan_decodes(builder)
            self._plan_prefills(builder)
        if not builder.entries:
            return None
        step = self.counters.steps
        plan, entries = builder.build(step, self._closed_rows, self._cache.take_released())
        self._closed_rows = []
        self._in_flight.append((step, entries))
        self.counters.steps += 1
        self.counters.computed_tokens += builder.tokens
        return plan

    def _depth(self) -> int:
        """Steps that may be in flight: no look-ahead where it would split the streams into two halves by turns."""
        return 1 if any(request.stepwise for request in self._running) else STEPS_IN_FLIGHT

    def _is_stuck(self) -> bool:
        """Running requests hold every slot and none can take another: only a retraction helps."""
        return len(self._running) > 1 and not self._in_flight

    def _plan_decodes(self, builder: PlanBuilder) -> None:
        """Every running stream gets its next token, before anything else: evict, then retract, to make room."""
        decodes = [request for request in self._running if request.decodes]
        while self._cache.available < sum(request.pending for request in decodes) and len(self._running) > 1:
            victim = self._victim()
            self._retract(victim)
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

    def _plan_prefills(self, builder: PlanBuilder) -> None:
        """Share what the decodes left of the step's budget among prefills under way and new requests.

        The oldest prefill gets half before anyone else, so it always advances; short prompts need not wait for it.
        """
        budget = max(self._chunk_tokens - builder.tokens, self._chunk_tokens // 4, 1)
        partial = [request for request in self._running if request.to_prefill]
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
            self._count_cached(request, self._cache.advance(lease, request.tokens, request.publish_until))
        count = min(request.to_prefill, budget, self._cache.available)
        if count <= 0:
            return 0
        slots = self._cache.grow(lease, count)
        assert slots is not None
        builder.compute(request, slots)
        moved = self._cache.publish(lease, request.tokens[: min(lease.length, request.publish_until)])
        assert moved is None, "a prefill computed what the tree already had"
        return count

    def _admit(self, builder: PlanBuilder, budget: int, partial: list[Request]) -> int:
        """Let waiting requests in while rows, slots and budget last; returns the budget left. `partial` grows."""
        admitted: list[Request] = []
        if budget > 0 and self._rows and len(self._queue):
            for request in self._queue.in_order(self._cache):
                if budget <= 0 or not self._rows:
                    break
                if request.in_flight:  # just retracted; what it gains is still to come
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
        """Lock what the tree has of a request, then see whether the rest fits; "admitted": it has a lease and a row."""
        request.drop_held()
        lease = self._cache.open(request.namespace, request.tokens, request.match_limit)
        missing = request.known - lease.length
        verdict = "admitted"
        if missing > budget and len(partial) >= MAX_PARTIAL:
            verdict = "too long now"
        elif self._running:
            promised = sum(self._promised(other) for other in self._running)
            if missing + min(request.tokens_to_come, DECODE_RESERVE) + promised > self._cache.available:
                verdict = "no slots"
        if verdict != "admitted":
            self._cache.close(lease, None)
            return verdict
        self._queue.remove(request)
        request.admit(lease, self._rows.pop())
        self._running.append(request)
        self._count_cached(request, lease.length)
        return verdict

    @staticmethod
    def _promised(request: Request) -> int:
        """Slots that a running request will ask for soon: the rest of its prefill and some of its completion."""
        return request.to_prefill + min(request.tokens_to_come, DECODE_RESERVE)

    def _count_cached(self, request: Request, tokens: int) -> None:
        """Tokens that other work had computed. After a retraction a match may be its own work, which does not count."""
        if not request.retracted:
            request.cached_tokens += tokens
            self.counters.cached_tokens += tokens

    def _victim(self) -> Request:
        """Who is retracted: whoever produced least; among equals the latest arrival."""
        return min(self._running, key=lambda request: (request.produced, -request.arrival, -request.serial))

    def _retract(self, request: Request) -> None:
        """Take a request's row and slots away. Its computed tokens stay in the tree, evictable; it queues up first."""
        self._leave_row(request)
        request.retracted = True
        self._queue.add(request)
        self.counters.retracted += 1

    # --- results ---------------------------------------------------------------------------------------------------

    def apply(self, result: StepResult) -> list[TokenChunk]:
        """Take a step's results: new tokens, finished requests. Results come in the order of the plans."""
        step, entries = self._in_flight.popleft()
        if result.step != step:
            raise RuntimeError(f"the worker answered step {result.step} where step {step} was due")
        self.counters.step_seconds += result.seconds
        if self._speculator is not None:
            self._speculator.cost.observe(sum(entry.count for entry in entries), result.seconds)
        if len(result.entries) != len(entries):
            raise RuntimeError(f"the worker answered {len(result.entries)} entries where it had {len(entries)}")
        chunks = []
        for entry, gained in zip(entries, result.entries):
            entry.request.in_flight -= entry.samples
            if entry.request.finished:
                continue  # it ended while this step was in flight; what it gained is dropped
            chunk = self._apply_entry(entry, gained)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _apply_entry(self, entry: Entry, gained: EntryResult) -> TokenChunk | None:
        request = entry.request
        if gained.prompt is not None:
            request.answers.append(gained.prompt)
        if gained.failure is not None and gained.failure.kind == "not finite":
            return self._finish(request, failed(request, gained.failure), keep=False)
        if entry.samples:
            finish = self._take_tokens(entry, gained)
            if finish is not None:
                return self._finish(request, finish)
            chunk = request.chunk(None)
            return chunk if chunk.token_ids or chunk.prompt is not None else None
        if entry.end == request.prompt_length and request.sampling.max_tokens == 0:
            return self._finish(request, Finish("length"))
        return None

    def _take_tokens(self, entry: Entry, gained: EntryResult) -> Finish | None:
        """What an entry gained becomes part of its request; returns why the completion ends with it, if it does."""
        request, speculated, right_guesses = entry.request, len(entry.guesses), accepted(gained, entry.guesses)
        forced = gained.edit.forced if gained.edit is not None else 0
        finish, right = take_tokens(gained, request, right_guesses)
        if request.grammar is not None or speculated:
            self._drop_computed(request, right)
        elif finish is None and self._speculator is not None and not request.speculates:
            # if there is a guess now, the next step must wait for the tokens still in flight
            request.speculates = len(self._speculator.propose(request, len(self._running))) > 1
        request.note_step(speculated, right_guesses, forced, is_pass=entry.start >= request.prompt_length)
        if speculated:
            request.speculation.learn(speculated, right_guesses)
        self.counters.generated_tokens += len(gained.token_ids)
        self.counters.speculated_tokens += speculated
        self.counters.accepted_tokens += right_guesses
        self.counters.forced_tokens += forced
        return finish

    def _drop_computed(self, request: Request, right: int) -> None:
        """Give back what was computed for tokens that are not in the sequence: all but its first `right` positions, and
        its last one at any rate, whose logits the next token needs."""
        if request.lease is None:  # it was retracted meanwhile
            return
        length = min(request.lease.length, right, request.known - 1)
        self._cache.shrink(request.lease, length)
        if request.synced is not None:
            request.synced = min(request.synced, length)

    def _finish(self, request: Request, finish: Finish, *, keep: bool = True) -> TokenChunk:
        """End a sample and say so. `keep` False: what it computed last must not be served to others."""
        if self._speculator is not None and keep and finish.reason != "error":
            self._speculator.remember(request)
        self._release(request, keep=keep)
        self.counters.finished += 1
        return request.chunk(finish)

    def _release(self, request: Request, *, keep: bool = True) -> None:
        """A request is over: give back everything it holds, wherever it is."""
        request.finished = True
        waited = self._grammars.leave(request)
        if request.lease is not None:
            self._leave_row(request, keep=keep)
        elif not waited:
            self._queue.remove(request)
        samples = self._requests[request.request_id]
        del samples[request.index]
        if not samples:
            del self._requests[request.request_id]

    def _leave_row(self, request: Request, *, keep: bool = True) -> None:
        """Close a running request's lease and row; with `keep`, what it computed stays in the tree."""
        assert request.lease is not None
        computed = min(request.lease.length, request.known)
        self._cache.close(request.lease, request.tokens[:computed] if keep else None)
        self._running.remove(request)
        self._rows.append(request.row)
        if request.synced is not None:  # else the worker never heard of it
            self._closed_rows.append(request.row)
        request.leave()

    # --- the books -------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Prove that the books balance and that every request is in exactly one place; raises where they do not."""
        self._cache.audit()
        rows = [request.row for request in self._running] + self._rows
        if len(set(rows)) != len(rows):
            raise AssertionError(f"a row is used twice: {sorted(rows)}")
        private = sum(r.lease.length - r.lease.shared for r in self._running if r.lease is not None)
        if private != self._cache.private:
            raise AssertionError(f"running requests hold {private} private slots, the cache says {self._cache.private}")
        known = sum(len(samples) for samples in self._requests.values())
        if known != len(self._running) + self.waiting:
            raise AssertionError(f"{known} requests are known, {len(self._running)} run and {self.waiting} wait")
