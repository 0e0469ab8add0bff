"""What programs run on: the one protocol, and the plain records that pass through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Unsupported
from ..history import History, plain_text
from ..ir import Gen, GenOptions, Role, Select
from ..words.choices import Scored

Emit = Callable[[str], None]


@dataclass(frozen=True)
class TokenCounts:
    """Token counts of one step. A prompt counts once, however many samples it has; cached: computed by earlier work."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Sample:
    """One completion. runs: what it adds to a prompt (token ids, and text where there are none); text: all of it.

    logprobs: for each token a dict of token_id (None where the API does not tell), text, logprob and top, where wanted.
    reasoning: where the API tells that from the text itself.
    """

    text: str
    runs: tuple[str | list[int], ...]
    finish_reason: str
    logprobs: list[dict[str, Any]] | None = None
    reasoning: str = ""


@dataclass(frozen=True)
class Completed:
    """What a generation gave: its n samples, at least one."""

    samples: list[Sample]
    usage: TokenCounts


@dataclass(frozen=True)
class Judged:
    """What a selection needs to know of every choice, in their order."""

    scored: list[Scored]
    usage: TokenCounts = field(default_factory=TokenCounts)


class Backend(ABC):
    """A model somewhere. All async methods are called in the loop of `loop.loop_thread`; cancelling them aborts.

    The `check` methods refuse at once, before anything is sent, what the backend cannot do: nothing is ignored.
    """

    name: str

    @abstractmethod
    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        """Raise Unsupported unless `generate` can do this in a message of this role (None: outside of all).

        begun: whether the message, or the text outside of messages, already has something in it.
        """

    @abstractmethod
    def check_select(self, select: Select, role: Role | None) -> None:
        """Raise Unsupported unless `judge` can do this."""

    @abstractmethod
    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        """Let the model go on. emit: wants the first sample's text, piece by piece, as it comes."""

    async def judge(self, history: History, choices: Sequence[str], *, unconditional: bool) -> Judged:
        """Every choice's log-probabilities after the history."""
        raise Unsupported(f"{self.name} cannot select.")

    async def text(self, history: History) -> str:
        """The whole state as text, chat template included where one is known."""
        return plain_text(history)

    def flush_cache(self) -> int:
        """Forget every cached prefix that is not in use; how many tokens that freed. Blocking."""
        raise Unsupported(f"{self.name} has no cache that could be flushed.")


def refuse_options(backend: str, options: GenOptions, supported: frozenset[str], elsewhere: str = "") -> None:
    """Raise Unsupported for the first given option that is not among the supported ones. elsewhere: a last sentence."""
    for name in options.given():
        if name not in supported:
            takes = f"of gen's arguments it takes {', '.join(sorted(supported))}"
            raise Unsupported(f"{backend} cannot do {name}; {takes}.{elsewhere}")
