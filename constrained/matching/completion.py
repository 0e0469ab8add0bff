"""One constrained completion: what may come next, what is forced, and the way back where a value fails its check."""

from __future__ import annotations

import numpy as np

from ..engines.base import Matcher
from .backtracking import Backtracking, Checks
from .interface import Edit
from .jump_forward import JumpForward
from .path import Path


class ConstrainedCompletion:
    """A `TokenConstraint`: a matcher, the checks of values, and jump-forward, moved along together."""

    def __init__(self, matcher: Matcher, checks: Checks | None, jump_forward: JumpForward | None) -> None:
        """matcher and checks: at the start, and nobody else's. Without `jump_forward`, every token is sampled."""
        self._vocabulary = matcher.vocabulary
        self._matcher = matcher
        self._checks = checks
        self._jump_forward = jump_forward
        self._path = Path(matcher)
        self._search = Backtracking(self._path, checks) if checks is not None else None
        self._held = 0
        self._failure = ""

    def fill(self, bitmask: np.ndarray) -> None:
        """See `TokenConstraint.fill`.

        Where the engine gives up, the end is allowed, and the next edit says what was wrong.
        """
        mask = self._search.mask() if self._search is not None else self._matcher.mask()
        if not mask.any():
            self._failure = self._failure or self._matcher.error or "the grammar allows none of the model's tokens here"
            mask = self._vocabulary.eos_bits
        width = min(len(mask), len(bitmask))  # models may have more or fewer logits than their tokenizers have tokens
        bitmask[:width] = mask[:width]
        bitmask[width:] = 0

    def advance(self, token_id: int) -> Edit:
        """See `TokenConstraint.advance`. Raises ValueError for a token that was not allowed."""
        if self._failure:
            return Edit(failure=self._failure)
        if token_id in self._vocabulary.eos_ids:
            return self._end(token_id)
        reported = len(self._path)
        if not self._matcher.accept(token_id):
            return self._refused(token_id)
        token_ids = [token_id]
        if self._jump_forward is not None:
            token_ids = self._jump_forward.extend(self._matcher, self._path.token_ids, token_id)
        for each in token_ids:
            self._path.append(each)
        is_over = self._matcher.is_over
        if self._search is not None and not (self._search.passes() and (not is_over or self._search.may_end())):
            return self._go_back(reported)
        return self._edit(reported, complete=is_over)

    def replay(self, token_ids: list[int]) -> Edit:
        """See `TokenConstraint.replay`.

        What had been found to lead nowhere is found again; `advance` may take tries for it.
        """
        for each in token_ids:
            if not self._matcher.accept(each):
                return self._refused(each)
            self._path.append(each)
        if self._search is not None and not self._search.passes():
            raise ValueError("the completion to go on with fails a check")
        return self._edit(len(token_ids), complete=self._matcher.is_over)

    def _end(self, token_id: int) -> Edit:
        if not self._matcher.may_end:
            return self._refused(token_id)
        if self._search is not None and not self._search.may_end():
            return self._go_back(len(self._path))
        return Edit([token_id], complete=True)

    def _go_back(self, reported: int) -> Edit:
        """The edit after a check failed; `reported` tokens are in the edits before it."""
        assert self._search is not None
        failure = self._search.go_back(reported - self._held)
        return self._fail(failure) if failure else self._edit(reported)

    def _edit(self, reported: int, complete: bool = False) -> Edit:
        rewind = max(0, reported - len(self._path))
        held_from = None if self._checks is None or complete else self._checks.held_from
        self._held = 0 if held_from is None else self._path.tokens_from(held_from)
        return Edit(self._path.token_ids[reported:], rewind, self._held, complete)

    def _refused(self, token_id: int) -> Edit:
        if self._matcher.error:
            return self._fail(self._matcher.error)
        raise ValueError(f"token {token_id} is not allowed here")

    def _fail(self, message: str) -> Edit:
        self._failure = message
        return Edit(failure=message)
