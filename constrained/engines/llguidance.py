"""Matchers of llguidance: an Earley parser over a lexer of derivatives. A payload is the grammar's text.

The library has no serialised form of a compiled grammar, so each process that loads a payload builds it anew. That is
the cheaper way: over 180 schemas from practice loading takes 1.9 ms in the median, a quarter of what compiling takes
(which tries grammars and finds checks), and 8.6 ms for xgrammar, whose compiled form, 400 times as long as the text, is
only read. `tests/bench/load_bench.py` prints these figures.

The library's limits on work lead to an error from which a matcher does not recover. Two of them are hit by completions
that have done nothing wrong, and are taken care of here: all copies of a matcher share one lexer, whose states add up
over all the completions of a grammar; and a grammar that forces text without end exhausts its search for forced text.
"""

from __future__ import annotations

import json
import re

import llguidance
import numpy as np

from ..spec import ConstraintError
from ..vocabulary import Vocabulary
from .base import Matcher

# Schemas from practice stay far below these. An ambiguous grammar, whose masks become slower with every token, ends its
# own request before it takes many milliseconds from everybody's steps; a lexer state takes 1 to 2 kB.
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=1_000, step_max_items=5_000, max_lexer_states=50_000, verbose_errors=False
)

# An object takes four items of a row for each property that may come next; hundreds of them are no ambiguity.
WIDE = 100
WIDE_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=5_000, step_max_items=30_000, max_lexer_states=50_000, verbose_errors=False
)


_NAMED = re.compile(r"<\[(\d+)\]>")  # a token in a grammar, by its id


class LLGuidanceTemplate:
    """A grammar as `llguidance.LLMatcher` takes it."""

    def __init__(self, payload: bytes, vocabulary: Vocabulary) -> None:
        """Raises ConstraintError for a grammar that the engine refuses."""
        self._grammar = payload.decode("utf-8")
        self._vocabulary = vocabulary
        self._limits = WIDE_LIMITS if _widest(self._grammar) > WIDE else LIMITS
        named = vocabulary.control_ids.intersection(map(int, _NAMED.findall(self._grammar)))
        self._usable = vocabulary.usable_bits | vocabulary.bits(named) if named else None
        self._start = self._compiled()
        if self._start.is_error():
            raise ConstraintError(self._start.get_error())

    def _compiled(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(
            self._vocabulary.llguidance_tokenizer, self._grammar, log_level=0, limits=self._limits
        )

    def start(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self, self._start.deep_copy(), self._vocabulary, self._usable)

    def restart(self) -> llguidance.LLMatcher:
        """A matcher whose lexer has no past; completions that start from now on share it."""
        self._start = self._compiled()
        return self._start.deep_copy()


class LLGuidanceMatcher(Matcher):
    """One completion in a grammar of llguidance."""

    def __init__(
        self,
        template: LLGuidanceTemplate,
        matcher: llguidance.LLMatcher,
        vocabulary: Vocabulary,
        usable: np.ndarray | None = None,
    ) -> None:
        super().__init__(vocabulary, usable)
        self._template = template
        self._matcher = matcher
        self._token_ids: list[int] = []
        self._has_restarted = False

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
        forced = self._forced()
        return self._forced() if self._has_failed() else forced

    def _forced(self) -> bytes:
        """After a restart the search is left to a copy, which alone has an error then where there is no end to it.

        The library goes on with control tokens, after a byte that no text holds.
        """
        matcher = self._matcher.deep_copy() if self._has_restarted else self._matcher
        return matcher.compute_ff_bytes().partition(b"\xff")[0]

    def _fill(self, row: np.ndarray) -> None:
        self._fill_once(row)
        if self._has_failed():
            self._fill_once(row)

    def _fill_once(self, row: np.ndarray) -> None:
        if self._has_restarted and len(forced := self._forced()) >= self.vocabulary.longest:
            row[:] = self.vocabulary.bits(self.vocabulary.beginning(forced))
            return
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if np.count_nonzero(row) == 1 and (forced := self._forced()):
            row |= self.vocabulary.bits(self._along(forced))

    def _along(self, forced: bytes) -> list[int]:
        """All tokens that agree with forced text.

        The library leaves but one, the first into which a tokenizer cuts the forced text; where that is joined to what
        follows, another one may be right.
        """
        shorter, longer = self.vocabulary.beginning(forced), self.vocabulary.starting_with(forced)
        return shorter + [token_id for token_id in longer if self._matcher.validate_tokens([token_id]) == 1]

    def _accept(self, token_id: int) -> bool:
        accepted = self._matcher.try_consume_tokens([token_id]) == 1
        if not accepted and self._has_failed():
            accepted = self._matcher.try_consume_tokens([token_id]) == 1
        if accepted:
            self._token_ids.append(token_id)
        return accepted

    def _rollback(self, tokens: int) -> None:
        del self._token_ids[len(self._token_ids) - tokens :]
        self._matcher.rollback(tokens)

    def _has_failed(self) -> bool:
        """Whether the last call has met a limit; if so, and for the first time, the matcher has been set up anew."""
        if self._has_restarted or not self._matcher.is_error():
            return False
        self._has_restarted = True
        self._matcher = self._template.restart()
        self._matcher.consume_tokens(self._token_ids)
        return True


def _widest(grammar: str) -> int:
    """The most properties of one object in a grammar of JSON schemas; 0 for other grammars."""
    if len(grammar) < 10 * WIDE or not grammar.startswith("{"):
        return 0
    widest = 0
    todo = [json.loads(grammar)]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            widest = max(widest, len(properties) if isinstance(properties, dict) else 0)
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return widest
