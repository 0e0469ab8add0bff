"""How to choose tokens: the one declaration of what a request may say of it. Torch-free."""

from __future__ import annotations

from ..records import Part


class Sampling(Part, frozen=True, omit_defaults=True):
    """How to choose tokens. Ranges are checked in the front (`managers.front.params`); everyone downstream trusts them.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off. `seed` is always set: the front draws one where
    the user gave none. A token is a function of (seed, its position in the sequence) and the logits only.
    `logprobs` None: none wanted; k >= 0: the chosen token's and the k most likely tokens' at every position.
    """

    max_tokens: int
    seed: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None
