"""What a request may want of the last layer at its prompt's positions, beside the next token; and what it then gets.

Each kind is declared here and computed in `runtime.execution.last_layer`; everyone between passes both on as they are.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .records import Part, TopLogprobs


class Wanted(Part, frozen=True):
    """What is wanted of the prompt's positions from `start` on.

    kind: "logprobs": the log-probability of each position's token, with the `top` likeliest alternatives; position 0
    has none. "hidden": the last layer's output there, normed.
    """

    kind: Literal["logprobs", "hidden"]
    start: int
    top: int = 0

    @property
    def lag(self) -> int:
        """How many positions before the one it is about a hidden state stands."""
        return 1 if self.kind == "logprobs" else 0


class PromptLogprobs(Part, frozen=True, tag=True):
    """Log-probabilities of the prompt tokens at positions start, start + 1, …; `top` is as long."""

    start: int
    logprobs: list[float]
    top: list[TopLogprobs]

    def __len__(self) -> int:
        return len(self.logprobs)

    def followed_by(self, others: Sequence[PromptLogprobs]) -> PromptLogprobs:
        """All of them as one; each begins where the one before ends."""
        parts = [self, *others]
        logprobs = [value for part in parts for value in part.logprobs]
        return PromptLogprobs(self.start, logprobs, [top for part in parts for top in part.top])


class HiddenStates(Part, frozen=True, tag=True):
    """Hidden states of the prompt's positions start, start + 1, …: packed float32 [positions, width]."""

    start: int
    width: int
    packed: bytes

    def __len__(self) -> int:
        return len(self.packed) // (4 * self.width)

    def followed_by(self, others: Sequence[HiddenStates]) -> HiddenStates:
        """All of them as one; each begins where the one before ends."""
        return HiddenStates(self.start, self.width, b"".join(part.packed for part in [self, *others]))

    @property
    def values(self) -> np.ndarray:
        """float32 [positions, width], read-only."""
        return np.frombuffer(self.packed, "<f4").reshape(-1, self.width)


PromptAnswer = PromptLogprobs | HiddenStates


def joined(parts: Sequence[PromptAnswer]) -> PromptAnswer:
    """The answers of consecutive steps as one. They are of one kind."""
    first, *others = parts
    return first.followed_by(others) if others else first  # type: ignore[arg-type]
