"""The worker's grammars: loaded in a thread beside the steps, kept until the scheduler says to forget them, with a
completion for every row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ...constrained.matching.interface import TokenConstraint
from ...constrained.spec import Compiled
from ...runtime.records import unpack_ids
from ...runtime.step import OpenRow
from ..wire.grammars import GrammarReady
from ..wire.sockets import Outbox

if TYPE_CHECKING:
    from ...constrained.matching.constraint_loader import ConstraintLoader, LoadedConstraint


class FailedStart:
    """In place of a completion that could not be started: says why once the row is to sample, which ends its
    request."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def fill(self, bitmask: np.ndarray) -> NoReturn:
        raise self._error

    def advance(self, token_id: int) -> NoReturn:
        raise self._error


class GrammarLoader:
    """Not for use from several threads; it has one of its own, in which the tokenizer is read at the first grammar."""

    def __init__(self, model_path: str, *, jump_forward: bool, answers: Callable[[], Outbox]) -> None:
        """answers: makes an outbox to the scheduler; it is called in the loading thread, which alone uses it."""
        self._model_path = Path(model_path)
        self._jump_forward = jump_forward
        self._make_answers = answers
        self._answers: Outbox | None = None
        self._loader: ConstraintLoader | None = None
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._grammars: dict[str, Future[LoadedConstraint]] = {}

    def warm(self) -> None:
        """Load what all grammars share, before the first one needs it. May be called more than once."""
        self._thread.submit(lambda: self._shared().warm())

    def prepare(self, grammar: Compiled) -> None:
        """Load a grammar unless that was done or begun; the scheduler is told when it is there."""
        loaded = self._grammars.get(grammar.key)
        if loaded is None or (loaded.done() and loaded.exception() is not None):
            loaded = self._grammars[grammar.key] = self._thread.submit(self._load, grammar)
        self._thread.submit(self._announce, grammar.key, loaded)

    def forget(self, key: str) -> None:
        """Drop a grammar; the completions that were started for it go on."""
        self._grammars.pop(key, None)

    def start(self, row: OpenRow) -> TokenConstraint | FailedStart:
        """The constrained completion of a row that has a grammar, at the end of what the row has generated.

        Where log-probabilities are wanted every token is sampled, since forced ones have none. Raises nothing.
        """
        try:
            return self._start(row)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of an engine in Rust is no Exception
            return FailedStart(error)

    def _start(self, row: OpenRow) -> TokenConstraint:
        jump_forward = self._jump_forward and row.sampling.logprobs is None
        completion = self._grammars[row.grammar].result().start(jump_forward=jump_forward)
        so_far = unpack_ids(row.output_ids).tolist()
        if so_far:
            completion.replay(so_far)
        return completion

    def _load(self, grammar: Compiled) -> LoadedConstraint:
        return self._shared().load(grammar)

    def _shared(self) -> ConstraintLoader:
        if self._loader is None:
            from ...constrained.matching.constraint_loader import ConstraintLoader
            from ...constrained.vocabulary import vocabulary_of
            from ...runtime.text.tokenizers.loading import load_tokenizer

            self._loader = ConstraintLoader(vocabulary_of(load_tokenizer(self._model_path)))
        return self._loader

    def _announce(self, key: str, loaded: Future[LoadedConstraint]) -> None:
        """Runs in the loading thread, behind the load."""
        if self._answers is None:
            self._answers = self._make_answers()
        error = loaded.exception()
        self._answers.send(GrammarReady(key, "" if error is None else f"{type(error).__name__}: {error}"))
