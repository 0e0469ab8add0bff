"""What the worker's sampler sees of a constraint: which tokens a row may choose from. Interfaces only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Edit:
    """What one sampled token did to a row's completion: its last `rewind` tokens go, then `token_ids` come.

    Usually rewind is 0 and `token_ids` is the sampled token, followed by the tokens that the grammar forces. rewind > 0
    with other tokens: a value that closed failed its check, so the search went back to an earlier choice (that
    token is never offered there again). Only tokens that were still `held` are ever taken back.
    held: how many of the completion's last tokens may still be taken back; those are not shown to anyone yet.
    complete: nothing can follow; the completion ends here, with reason "stop".
    failure: the sentence with which the request must end ("" where all is well).
    """

    token_ids: list[int] = field(default_factory=list)
    rewind: int = 0
    held: int = 0
    complete: bool = False
    failure: str = ""


class TokenConstraint(Protocol):
    """One row's constraint while it generates. Deterministic: edits depend on the tokens given to it only."""

    def fill(self, bitmask: np.ndarray) -> None:
        """Write which tokens may come next into int32 [ceil(vocab / 32)], token i at bit i % 32 of word i // 32.

        The model's end tokens are allowed where the completion may end here. Never empty: where nothing is
        allowed, the last edit has said so.
        """
        ...

    def advance(self, token_id: int) -> Edit:
        """Take the sampled token, one which the last `fill` allowed."""
        ...

    def replay(self, token_ids: list[int]) -> Edit:
        """At the start only: take over a completion so far, made under the same constraint (a row that was retracted).

        Its edit has no tokens; it says what is held and whether the completion is complete or failed.
        """
        ...
