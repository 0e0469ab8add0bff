"""What a scheduler has done since its start, for the metrics. Plain figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Tokens, but for steps, finished, aborted and retracted (sequences)."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    speculated_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0
    step_seconds: float = 0.0
