"""How speculation goes for one request: how many tokens are guessed, and when it pauses. Plain figures."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LENGTH, MAX_LENGTH = 4, 16  # tokens
FIRST_RATE = 0.8  # hoped for before anything is known: worth a try where few streams run
PAUSE = 32  # tokens without guesses after they stopped paying; twice as many each time
MAX_PAUSE = 1024


@dataclass
class SpeculationState:
    """length: tokens to guess next time. rate: the share of guesses that came true, lately. resume_at: completion
    tokens before which nothing is guessed. paused: how long the last pause was."""

    length: int = FIRST_LENGTH
    rate: float = FIRST_RATE
    resume_at: int = 0
    paused: int = 0

    def learn(self, guessed: int, accepted: int) -> None:
        """Take in how many of the tokens guessed in one step came true."""
        self.rate = 0.6 * self.rate + 0.4 * accepted / guessed
        if accepted == guessed:
            self.length = min(2 * self.length, MAX_LENGTH)
        elif accepted * 2 < guessed:
            self.length = max(self.length // 2, 2)

    def pause(self, produced: int) -> None:
        """Guess nothing for a while, longer each time, then try anew."""
        self.paused = min(max(2 * self.paused, PAUSE), MAX_PAUSE)
        self.resume_at = produced + self.paused
        self.rate, self.length = FIRST_RATE, FIRST_LENGTH
