"""What a row brings to the choice of its next token: its options, and what it generated so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .params import Sampling

EVERY_BIT = np.int32(-1)  # a word of a bitmask that allows all of its 32 tokens


class SamplingState:
    """One row's options and history. Counts over the vocabulary are kept only where a penalty needs them.

    stop_ids int64, bias_ids int64 and bias float32; in_prompt bool [vocab] and counts float32 [vocab], or None. The
    arrays are the same ones for the state's whole life: `append` writes into `counts`.
    """

    def __init__(
        self,
        options: Sampling,
        stop_ids: Sequence[int],
        prompt_ids: np.ndarray,
        output_ids: np.ndarray,
        vocab_size: int,
    ) -> None:
        """output_ids: what the row generated before (a resumed row); it counts as generated."""
        self.options = options
        self.stop_ids = np.array(sorted(set(stop_ids)), np.int64)
        self.bias_ids = np.array(list(options.logit_bias.keys()), np.int64)
        self.bias = np.array(list(options.logit_bias.values()), np.float32)
        self.generated = len(output_ids)
        self.in_prompt: np.ndarray | None = None
        self.counts: np.ndarray | None = None
        if options.repetition_penalty != 1 or options.presence_penalty or options.frequency_penalty:
            self.in_prompt = np.zeros(vocab_size, np.bool_)
            self.in_prompt[prompt_ids] = True
            self.counts = np.bincount(output_ids, minlength=vocab_size).astype(np.float32)

    @property
    def penalizes(self) -> bool:
        return self.counts is not None

    @property
    def holds_back_stop(self) -> bool:
        """Whether stop ids are excluded from the next choice."""
        return self.generated < self.options.min_tokens and len(self.stop_ids) > 0

    @property
    def is_plain(self) -> bool:
        """Whether the next choice is just the largest of the model's own logits, where no bitmask says otherwise."""
        changed = self.penalizes or len(self.bias_ids) > 0 or self.holds_back_stop
        return self.options.temperature == 0 and not changed

    def append(self, token_id: int) -> None:
        """Records a generated token."""
        self.generated += 1
        if self.counts is not None:
            self.counts[token_id] += 1

    def remove(self, token_id: int) -> None:
        """Takes back a recorded token."""
        self.generated -= 1
        if self.counts is not None:
            self.counts[token_id] -= 1


def looks_back(options: Sampling) -> bool:
    """Whether a choice, or what is said of it, needs the tokens before it on the host."""
    penalizes = options.repetition_penalty != 1 or options.presence_penalty or options.frequency_penalty
    return bool(penalizes) or options.min_tokens > 0 or options.logprobs is not None


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64: a hash of (seed, position), each step SplitMix64 (Steele et al., 2014).

    seeds uint64 [rows], positions integer [rows].
    """
    mixed = _splitmix(_splitmix(seeds) ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix(values: np.ndarray) -> np.ndarray:
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
