"""Matchers of llguidance: an Earley parser over a lexer of derivatives. A payload is the grammar's text."""

from __future__ import annotations

import llguidance
import numpy as np

from ..spec import ConstraintError
from ..vocabulary import Vocabulary
from .base import Matcher


# Schemas from practice stay far below these; an ambiguous grammar, whose masks become slower with every token, ends its
# own request before it takes many milliseconds from everybody's steps.
LIMITS = llguidance.LLParserLimits(max_items_in_row=500, step_max_items=5_000, verbose_errors=False)


class LLGuidanceTemplate:
    """A grammar as `llguidance.LLMatcher` takes it."""

    def __init__(self, payload: bytes, vocabulary: Vocabulary) -> None:
        """Raises ConstraintError for a grammar that the engine refuses."""
        self._vocabulary = vocabulary
        tokenizer = vocabulary.llguidance_tokenizer
        self._start = llguidance.LLMatcher(tokenizer, payload.decode("utf-8"), log_level=0, limits=LIMITS)
        if self._start.is_error():
            raise ConstraintError(self._start.get_error())

    def start(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._start.deep_copy(), self._vocabulary)


class LLGuidanceMatcher(Matcher):
    """One completion in a grammar of llguidance."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    @property
    def error(self) -> str:
        if not self._matcher.is_error():
            return ""
        return f"the grammar is too complex here: {self._matcher.get_error().partition('<')[0].strip()}"

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped()

    def forced(self) -> bytes:
        return self._matcher.compute_ff_bytes()

    def _fill(self, row: np.ndarray) -> None:
        forced = self._matcher.compute_ff_bytes()
        if len(forced) >= self.vocabulary.longest:  # the library's own mask gives up where a grammar forces without end
            row[:] = self.vocabulary.bits(self.vocabulary.beginning(forced))
        else:
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _accept(self, token_id: int) -> bool:
        return self._matcher.try_consume_tokens([token_id]) == 1

    def _rollback(self, tokens: int) -> None:
        self._matcher.rollback(tokens)
