"""The scheduler's decisions, without its sockets: what enters, what each step computes, what leaves.

One rule makes its books simple: plans are executed strictly in the order they are made, so a slot planned in one step
is as good as computed for the next, and one freed while planning may be used again in the same plan. The books are
therefore kept at planning time; results only bring token ids. It must never wait, and never touch text or tensors.
"""

from __future__ import annotations

from collections import deque

from ...radix.prefix_cache import PrefixCache
from ...runtime.step import EntryResult, Failure, StepPlan, StepResult
from ..wire.answers import Finish, TokenChunk
from ..wire.grammars import ForgetGrammar, GrammarReady, PrepareGrammar
from ..wire.prefixes import LoadPrefix, PrefixLoaded
from ..wire.requests import TokenizedRequest
from .counters import Counters
from .grammar_loads import GrammarLoads
from .plan import Entry
from .planner import StepPlanner
from .request import Request
from .results import accepted, failed, take_tokens
from .running import RunningRequests
from .speculation import Speculator
from .waiting_queue import WaitingQueue

STEPS_IN_FLIGHT = 2  # one that the worker computes, one that already waits for it


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
        self._max_queue = max_queue
        self.counters = Counters()
        self._queue = WaitingQueue(schedule)
        self._running = RunningRequests(cache, max_running)
        self._grammars = GrammarLoads()
        self._speculator = Speculator(cache) if speculation else None
        self._planner = StepPlanner(
            cache, self._queue, self._running, self._speculator, self.counters, chunk_tokens=chunk_tokens
        )
        self._requests: dict[str, dict[int, Request]] = {}
        self._in_flight: deque[tuple[int, list[Entry]]] = deque()
        self._arrivals = 0

    # --- what comes in ---------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._grammars) + len(self._planner.loads)

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

    def take_loads(self) -> list[LoadPrefix]:
        """What the worker must be told to load for the tier, since the last call."""
        return self._planner.take_orders()

    def prefix_loaded(self, message: PrefixLoaded) -> None:
        """The worker has loaded a prefix, or cannot: the requests that waited for it queue up, to compute what is not
        there."""
        self._planner.loaded(message.key, message.error)

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
        builder = self._planner.plan(nothing_in_flight=not self._in_flight)
        if not builder.entries:
            return None
        step = self.counters.steps
        poison = self._cache.take_released()
        plan, entries = builder.build(step, self._running.take_closed_rows(), poison, self._cache.take_copies())
        self._in_flight.append((step, entries))
        self.counters.steps += 1
        self.counters.computed_tokens += builder.tokens
        return plan

    def _depth(self) -> int:
        """Steps that may be in flight: no look-ahead where it would split the streams into two halves by turns."""
        return 1 if any(request.stepwise for request in self._running) else STEPS_IN_FLIGHT

    # --- results ---------------------------------------------------------------------------------------------------

    def apply(self, result: StepResult) -> list[TokenChunk]:
        """Take a step's results: new tokens, finished requests. Results come in the order of the plans."""
        step, entries = self._in_flight[0]
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
            entry.request.steps_in_flight -= 1
            if gained.failure is not None and gained.failure.kind == "not finite":
                chunk = self._not_finite(entry, gained.failure)
            elif entry.request.finished:
                continue  # it ended while this step was in flight; what it gained is dropped
            else:
                chunk = self._apply_entry(entry, gained)
            if chunk is not None:
                chunks.append(chunk)
        self._in_flight.popleft()
        return chunks

    def _apply_entry(self, entry: Entry, gained: EntryResult) -> TokenChunk | None:
        request = entry.request
        if gained.prompt is not None:
            request.answers.append(gained.prompt)
        if entry.samples:
            if request.lease is not None:
                self._cache.confirm(request.lease)
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

    def _not_finite(self, entry: Entry, failure: Failure) -> TokenChunk | None:
        """What a step made of a request is not finite, and where that began is not known: nothing stays in the tree
        that is not confirmed of what it read or computed, nor anything that others computed on top of it. They start
        again from what is confirmed, as does the request itself where not all of the rest was its own work.
        """
        request = entry.request
        if entry.void:
            return None  # it read what has been dropped since, and starts again
        name, tokens = request.namespace, request.tokens
        is_own_work = request.retried or self._cache.confirmed(name, tokens) >= request.adopted_until
        doubtful = self._cache.on_unconfirmed(name, tokens)
        again = [each for each in self._running if each.lease in doubtful and each is not request]
        chunk = None
        if not request.finished and is_own_work:
            chunk = self._finish(request, failed(request, failure), keep=False)
        elif not request.finished:
            request.retried = True
            if request.lease is not None:
                again.append(request)
        for each in again:
            self._planner.retract(each, keep=False)
        self._cache.drop_unconfirmed(name, tokens)
        for _, entries in self._in_flight:
            for other in entries:
                other.void |= other.request in again
        return chunk

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
            self._running.leave(request, keep=keep)
        elif not waited and not self._planner.loads.remove(request):
            self._queue.remove(request)
        samples = self._requests[request.request_id]
        del samples[request.index]
        if not samples:
            del self._requests[request.request_id]

    # --- the books -------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Prove that the books balance and that every request is in exactly one place; raises where they do not."""
        self._cache.audit()
        self._running.audit()
        known = sum(len(samples) for samples in self._requests.values())
        if known != len(self._running) + self.waiting:
            raise AssertionError(f"{known} requests are known, {len(self._running)} run and {self.waiting} wait")
