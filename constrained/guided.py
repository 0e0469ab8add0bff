"""One constrained completion: what may come next, what is forced, and the way back from a value that fails its check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .dead_ends import DeadEnds
from .engines.base import Matcher
from .guide import Edit
from .jump_forward import JumpForward

MAX_TRIES = 64
"""How often one completion may fail a check before its request fails."""

MAX_STEPS_BACK = 1024
"""How many bytes one failure may be followed back in search of another way."""

PATIENCE = 4
"""After so many failures of the same value, another way is looked for where few are open: at a key, an enum or a number
before inside free text, where nearly everything is allowed and hardly anything makes a difference."""

FEW = 20
"""How many different next bytes are few."""


class Checks(Protocol):
    """What the completion's values have to satisfy beside the grammar (`constrained.checks.Checker`).

    held_from: where the outermost checked value that is still open begins, as a byte offset in the completion.
    reason: why the last push, or finish, failed.
    """

    @property
    def held_from(self) -> int | None: ...
    @property
    def reason(self) -> str: ...
    def push(self, data: bytes) -> bool: ...
    def truncate(self, length: int) -> None: ...
    def finish(self) -> bool: ...


class Guided:
    """A `Guide`: a matcher, the checks of values, and jump-forward, moved along together."""

    def __init__(self, matcher: Matcher, checks: Checks | None, jump_forward: JumpForward) -> None:
        """matcher and checks: at the start, and nobody else's."""
        self._matcher = matcher
        self._vocabulary = matcher.vocabulary
        self._checks = checks
        self._jump_forward = jump_forward
        self._token_ids: list[int] = []
        self._text = bytearray()
        self._held = 0
        self._dead_ends = DeadEnds(self._vocabulary)
        self._tries = 0
        self._tries_here = (-1, 0)  # where the value that failed last begins, and how often it has failed
        self._failure = ""

    def fill(self, bitmask: np.ndarray) -> None:
        """See `Guide.fill`. Where the engine gives up, the end is allowed, and the next edit says what was wrong."""
        mask = self._mask()
        if not mask.any():
            self._failure = self._failure or self._matcher.error or "the grammar allows no token of this vocabulary here"
            mask = self._vocabulary.eos_bits
        bitmask[: len(mask)] = mask
        bitmask[len(mask) :] = 0

    def advance(self, token_id: int) -> Edit:
        """See `Guide.advance`. Raises ValueError for a token that was not allowed."""
        if self._failure:
            return Edit(failure=self._failure)
        if token_id in self._vocabulary.eos_ids:
            return self._end(token_id)
        before = len(self._token_ids)
        if not self._matcher.accept(token_id):
            raise ValueError(f"token {token_id} is not allowed here")
        self._token_ids += self._jump_forward.extend(self._matcher, self._token_ids, token_id)
        ...
