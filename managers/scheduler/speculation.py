"""Speculation: guesses at a completion's next tokens, taken from tokens that were seen before.

This decides what to guess and when guessing pays. It cannot change an answer: the worker samples every position as it
would without, and a guess only saves the step in which it comes true.

Four places are looked into, the likeliest first: what the request itself predicts of its completion; the path of the
radix tree behind the whole sequence (somebody had the same text before); the request's own tokens, where its last few
occurred earlier (prompt lookup decoding, Saxena, 2023); and the completions of requests that ended lately, where its
last few tokens occurred.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ...radix.prefix_cache import PrefixCache
from .request import Request

NGRAM = 4  # tokens that must recur before what followed them is guessed again
REMEMBERED = 1 << 16  # n-grams of ended completions

_NOTHING = np.empty(0, dtype=np.int32)


class StepCost:
    """What a step costs, and what one more token in it: seconds = fixed + tokens * each.

    Fitted to the steps so far by least squares; older ones count less and less.
    """

    _KEEP = 0.98  # of the weight of all before, at each step
    _LARGEST = 128  # tokens; larger steps lie on another line
    _UNKNOWN = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)  # before there are figures, for 1, 2, … streams

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, tokens, seconds, tokens², tokens * seconds

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in a step of so many tokens that took so long."""
        if 0 < tokens <= self._LARGEST:
            self._sums *= self._KEEP
            self._sums += (1.0, tokens, seconds, tokens**2, tokens * seconds)

    def least_acceptance(self, streams: int) -> float:
        """The share of guesses that must come true for guessing to pay, with `streams` running.

        A guess costs a token's time; one that comes true saves a token's time and a stream's part of the fixed time.
        """
        count, x, y, xx, xy = self._sums.tolist()
        spread = count * xx - x * x
        if count < 4 or spread < 0.01 * count * count:
            return self._UNKNOWN[min(max(streams, 1), len(self._UNKNOWN)) - 1]
        each = max((count * xy - x * y) / spread, 0.0)
        fixed = max((y - each * x) / count, 0.0)
        return each / max(each + fixed / max(streams, 1), 1e-12)


class Speculator:
    """Guesses for one scheduler's requests. Namespaces never learn from one another."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._seen: OrderedDict[tuple[str, bytes], tuple[np.ndarray, int]] = OrderedDict()
        self.cost = StepCost()

    def speculate(self, decodes: Sequence[Request], streams: int) -> dict[Request, np.ndarray]:
        """Guesses for those requests that are to decode and have some; none at all where slots are too few for all."""
        speculated: dict[Request, np.ndarray] = {}
        for request in decodes:
            if request.stepwise:
                guesses = self.propose(request, streams)
                request.speculates = len(guesses) > 0
                if len(guesses):
                    speculated[request] = guesses
        needed = sum(request.pending for request in decodes) + sum(map(len, speculated.values()))
        return speculated if needed <= self._cache.available else {}

    def propose(self, request: Request, streams: int) -> np.ndarray:
        """The tokens that may follow what is known of `request`, int32, at most `MAX_LENGTH`; empty where there is no
        guess, or where guesses do not pay for it now. streams: how many run."""
        state = request.speculation
        most = min(state.length, request.sampling.max_tokens - request.produced - 1)
        if most < 1 or request.produced < state.resume_at or request.produced < 1:
            return _NOTHING
        if state.rate < self.cost.least_acceptance(streams):
            state.pause(request.produced)
            return _NOTHING
        found = _predicted(request, most)
        if not len(found):
            found = self._cache.continuation(request.namespace, request.tokens, most)
        if not len(found):
            found = _repeated(request.tokens, most)
        if not len(found) and request.known >= NGRAM:
            run, place = self._seen.get((request.namespace, request.tokens[-NGRAM:].tobytes()), (_NOTHING, 0))
            found = run[place : place + most]
        return found

    def remember(self, request: Request) -> None:
        """Learn the completion of a request that ends."""
        if request.produced <= NGRAM:
            return
        run = request.tokens[max(request.prompt_length - NGRAM, 0) :].copy()
        data, size = run.tobytes(), run.itemsize
        for place in range(NGRAM, len(run)):
            key = (request.namespace, data[(place - NGRAM) * size : place * size])
            self._seen[key] = (run, place)
            self._seen.move_to_end(key)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def forget(self) -> None:
        """Drop all that `remember` learnt."""
        self._seen.clear()


def _predicted(request: Request, most: int) -> np.ndarray:
    """`most` tokens, or fewer, that follow the completion's last few in the request's prediction: where these occur
    several times, at the place nearest to as many tokens as there are."""
    predicted, produced = request.prediction, request.produced
    size = min(NGRAM, produced)
    if len(predicted) <= size:
        return _NOTHING
    last = request.tokens[-size:]
    starts = np.flatnonzero(predicted[: len(predicted) - size] == last[0])
    for offset in range(1, size):
        starts = starts[predicted[starts + offset] == last[offset]]
    if not len(starts):
        return _NOTHING
    start = int(starts[np.argmin(np.abs(starts + size - produced))])
    return predicted[start + size : start + size + most]


def _repeated(tokens: np.ndarray, most: int) -> np.ndarray:
    """`most` tokens that followed the last earlier occurrence of the last NGRAM tokens; empty without one.

    Where fewer followed, the text runs in a circle, and the guess goes on around it.
    """
    last = len(tokens) - NGRAM  # where the n-gram itself stands
    if last < 1:
        return _NOTHING
    starts = np.flatnonzero(tokens[:last] == tokens[last])
    for offset in range(1, NGRAM):
        starts = starts[tokens[starts + offset] == tokens[last + offset]]
    if not len(starts):
        return _NOTHING
    return np.resize(tokens[int(starts[-1]) + NGRAM :], most)
