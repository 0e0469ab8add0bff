"""Matchers of xgrammar: a pushdown automaton with masks computed ahead. A payload is a serialized CompiledGrammar.

Importing this module imports xgrammar, and with it torch and transformers.
"""

from __future__ import annotations

import numpy as np
import xgrammar

from ..spec import ConstraintError
from ..vocabulary import Vocabulary
from .base import Matcher

FORCED_BYTES = 256  # how far `forced` looks


class XGrammarTemplate:
    """A grammar that xgrammar compiled for this vocabulary."""

    def __init__(self, payload: bytes, vocabulary: Vocabulary) -> None:
        """Raises ConstraintError for a payload of another vocabulary or another version of the library."""
        self._vocabulary = vocabulary
        try:
            text = payload.decode("utf-8")
            self._grammar = xgrammar.CompiledGrammar.deserialize_json(text, vocabulary.xgrammar_info)
        except (RuntimeError, ValueError) as error:
            raise ConstraintError(f"the compiled grammar cannot be loaded: {error}") from error

    def start(self) -> XGrammarMatcher:
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._grammar), self._vocabulary)


class XGrammarMatcher(Matcher):
    """One completion in a grammar of xgrammar."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._matcher = matcher

    @property
    def error(self) -> str:
        return ""

    @property
    def may_end(self) -> bool:
        return self._matcher.is_completed()

    @property
    def is_over(self) -> bool:
        return self._matcher.is_completed() and not np.any(self.mask() & ~self.vocabulary.eos_bits)

    def forced(self) -> bytes:
        """Found byte by byte, for the library's own search does not end where a grammar forces text without end."""
        forced = bytearray()
        while len(forced) < FORCED_BYTES and not self._matcher.is_completed():
            byte = self.vocabulary.only_first_byte(self.mask())
            token_id = None if byte is None else self.vocabulary.byte_tokens.get(byte)
            if byte is None or token_id is None or not self.accept(token_id):
                break
            forced.append(byte)
        self.rollback(len(forced))
        return bytes(forced)

    def _fill(self, row: np.ndarray) -> None:
        self._matcher.fill_next_token_bitmask(row.reshape(1, -1))

    def _accept(self, token_id: int) -> bool:
        return self._matcher.accept_token(token_id)

    def _rollback(self, tokens: int) -> None:
        self._matcher.rollback(tokens)
