"""A completion that may think before its answer: free text between two marks, and only then what its constraint says.

Where the thinking begins and ends is a matter of the text alone, so that whoever reads the completion finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from ..spec import Thinking
from ..vocabulary import Vocabulary
from .interface import Edit, TokenConstraint

_SPACE = b" \t\r\n"
_Phase = Literal["start", "thinking", "closing", "gap", "answer"]


class ThinkingCompletion:
    """A `TokenConstraint` in phases. At the start the model may still open the thinking, or answer; thinking is free
    until the closing mark, which is forced once the budget is used up; so is the gap before a constrained answer.

    What is forced is spelled with the longest tokens there are: a mark that is a token is that token. Where the answer
    is constrained, no token reaches from a mark into what follows it.
    """

    def __init__(
        self,
        thinking: Thinking,
        vocabulary: Vocabulary,
        answer: Callable[[bool], TokenConstraint] | None,
        *,
        jump_forward: bool,
    ) -> None:
        """answer: starts the constraint of an answer, with or without jump-forward; None where any answer is allowed.

        While it is open whether the completion thinks there is none: forced text must not decide that.
        """
        self._vocabulary = vocabulary
        self._opening, self._closing = thinking.opening.encode(), thinking.closing.encode()
        self._gap = thinking.gap.encode()
        self._budget = thinking.budget
        self._marks = {i: text.encode() for i, text in thinking.tokens.items() if i < len(vocabulary)}
        self._start_answer = answer
        self._jump_forward = jump_forward
        self._answer = answer(False) if answer is not None else None
        self._phase: _Phase = "start"
        self._tokens: list[int] = []  # at the start: all so far
        self._tail = b""  # of the thinking: what could be the beginning of the closing mark
        self._forced = b""  # what has to follow, where something has to
        self._thought = 0  # tokens
        if thinking.inside:
            self._think(b"")

    def fill(self, bitmask: np.ndarray) -> None:
        """See `TokenConstraint.fill`."""
        if self._forced:
            _write(self._vocabulary.bits([self._longest(self._forced)]), bitmask)
        elif self._start_answer is None:
            bitmask[:] = -1
        elif self._phase == "thinking":
            _write(self._thinking_mask(), bitmask)
        else:
            bitmask[:] = 0
            if self._answer is not None:
                self._answer.fill(bitmask)
            if self._phase == "start":
                left = self._opening[len(self._begun()) :]
                mask = np.zeros(self._vocabulary.words, np.int32)
                _write(bitmask, mask)
                mask |= self._vocabulary.bits([self._longest(left)])
                _write(mask & ~self._vocabulary.bits(_longer(self._vocabulary, left)), bitmask)

    def advance(self, token_id: int) -> Edit:
        """See `TokenConstraint.advance`."""
        if self._phase == "start":
            return self._start(token_id)
        if self._phase == "answer" and self._answer is not None:
            return self._answer.advance(token_id)
        self._step(token_id)
        return Edit([token_id])

    def replay(self, token_ids: list[int]) -> Edit:
        """See `TokenConstraint.replay`."""
        taken = 0
        while self._phase == "start" and taken < len(token_ids):
            self._tokens.append(token_ids[taken])
            taken += 1
            self._decide()
        if self._phase == "answer" and self._start_answer is not None:
            self._answer = self._start_answer(self._jump_forward)
            return self._answer.replay(token_ids)
        if self._phase == "start" and self._answer is not None:
            try:
                return self._answer.replay(token_ids)
            except ValueError:  # an answer cannot begin like this
                self._answer = None
        while self._phase != "answer" and taken < len(token_ids):
            self._step(token_ids[taken])
            taken += 1
        if self._answer is not None and taken < len(token_ids):
            return self._answer.replay(token_ids[taken:])
        return Edit()

    def _start(self, token_id: int) -> Edit:
        """A token while it is open whether the completion thinks. The answer's constraint goes along as far as it can:
        the opening mark need not be anything that an answer can begin with."""
        edit = Edit([token_id])
        if self._answer is not None and token_id not in self._marks:
            try:
                edit = self._answer.advance(token_id)
            except ValueError:
                self._answer = None
        elif self._start_answer is not None:
            self._answer = None
        if edit.complete or edit.failure:
            return edit
        del self._tokens[len(self._tokens) - edit.rewind :]
        self._tokens += edit.token_ids
        self._decide()
        if self._phase == "answer" and self._start_answer is not None:
            self._answer = self._start_answer(self._jump_forward)
            return replace(edit, held=self._answer.replay(self._tokens).held)
        return edit if self._phase == "start" else replace(edit, held=0)

    def _decide(self) -> None:
        """At the start: whether the text so far is thinking, or certainly is none."""
        text = self._spelled(self._tokens).lstrip(_SPACE)
        if text.startswith(self._opening):
            self._answer = None
            self._think(text[len(self._opening) :])
        elif not self._opening.startswith(text):
            self._phase = "answer"

    def _step(self, token_id: int) -> None:
        """A token of the thinking, of what is forced, or of an answer that may be anything."""
        data = self._spelled([token_id])
        if self._phase == "thinking":
            self._thought += 1
            self._think(data)
        elif self._forced:
            self._forced = self._forced[len(data) :]
            if not self._forced:
                self._close(b"") if self._phase == "closing" else self._enter("answer")

    def _think(self, data: bytes) -> None:
        """More of the thinking."""
        text = self._tail + data
        end = text.find(self._closing)
        if end >= 0:
            self._close(text[end + len(self._closing) :])
        elif 0 <= self._budget <= self._thought:
            self._enter("closing", self._closing)
        else:
            self._tail = text[max(0, len(text) - len(self._closing) + 1) :]
            self._enter("thinking")

    def _close(self, rest: bytes) -> None:
        """The closing mark is complete. rest: what its last token says beyond it."""
        if self._start_answer is None:
            self._enter("answer")
            return
        if rest:
            raise ValueError("a token reaches from the thinking into the answer")
        self._answer = self._start_answer(self._jump_forward)
        self._enter("gap" if self._gap else "answer", self._gap)

    def _enter(self, phase: _Phase, forced: bytes = b"") -> None:
        self._phase, self._forced = phase, forced

    def _begun(self) -> bytes:
        """At the start: what is written of the opening mark."""
        return self._spelled(self._tokens).lstrip(_SPACE)

    def _thinking_mask(self) -> np.ndarray:
        """All but the end, and but tokens that say more than the end of the closing mark."""
        mask = (self._vocabulary.usable_bits & ~self._vocabulary.eos_bits) | self._vocabulary.bits(self._marks)
        mask &= ~_beyond(self._vocabulary, self._closing)
        for size in range(1, min(len(self._tail), len(self._closing) - 1) + 1):
            if self._closing.startswith(self._tail[len(self._tail) - size :]):
                mask &= ~self._vocabulary.bits(_longer(self._vocabulary, self._closing[size:]))
        return mask

    def _longest(self, text: bytes) -> int:
        """The longest token that `text` begins with; a mark's own one before others."""
        spelled = self._vocabulary.beginning(text)[-1:]
        marks = sorted((len(data), i) for i, data in self._marks.items() if text.startswith(data))
        if marks and (not spelled or marks[-1][0] >= len(self._vocabulary.token_bytes[spelled[0]])):
            return marks[-1][1]
        if not spelled:
            raise ValueError("the model has no tokens for the marks of its thinking")
        return spelled[0]

    def _spelled(self, token_ids: list[int]) -> bytes:
        return b"".join([self._marks.get(i) or self._vocabulary.token_bytes[i] for i in token_ids])


def _longer(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """The tokens that begin with `text` and go on."""
    return [i for i in vocabulary.starting_with(text) if len(vocabulary.token_bytes[i]) > len(text)]


@lru_cache(8)
def _beyond(vocabulary: Vocabulary, mark: bytes) -> np.ndarray:
    """The bitmask of the tokens that hold `mark` and something after it."""
    return vocabulary.bits([i for i, data in enumerate(vocabulary.token_bytes) if mark in data[:-1]])


def _write(mask: np.ndarray, bitmask: np.ndarray) -> None:
    """Models may have more or fewer logits than their tokenizers have tokens."""
    width = min(len(mask), len(bitmask))
    bitmask[:width] = mask[:width]
    bitmask[width:] = 0
