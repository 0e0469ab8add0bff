"""How to choose tokens: the one declaration of what a request may say of it.

HTTP bodies, the command line's flags, the language's options, the checks at the door and the layout of what the kernels
read are made of it. A new field is declared here, and acted on in the two samplers (`torch_choice.py`,
`kernels/src/sampling/choose.cpp`). It must import nothing heavy: neither torch nor numpy.

A row's logits go through these steps, in this order:
1. repetition penalty over every token of prompt and completion (CTRL, arXiv:1909.05858; as transformers has it):
   positive logits are divided by it, others multiplied;
2. presence and frequency penalty over the completion (OpenAI): logit - presence * (count > 0) - frequency * count;
3. logit bias, added;
4. until `min_tokens` are generated, the stop ids are excluded; what the row's bitmask forbids always is;
5. temperature 0 takes the largest logit (the lowest id of equals); else logits are divided by the temperature;
6. top-k, then top-p over what is left (the fewest most likely tokens whose share reaches top_p), then min-p (a token
   needs min_p times the likeliest one's probability). Tokens exactly as likely as the last one kept are kept too;
7. the inverse of the cumulative distribution, in order of token id, at `uniform(seed, position)`.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from ..declaration import Field

DEFAULT_MAX_TOKENS = 128
MAX_TOKENS = 2**31 - 1
MAX_LOGPROBS = 100
_RECOMMENDED = "as the model recommends"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As a request has it; `managers.front.requests.params` checks the ranges and makes `Sampling` of it.

    `max_tokens` 0 computes and caches the prompt only. The five that say which token is chosen, from `temperature` to
    `repetition_penalty`, are None where the request does not say: then the model's recommendation fills them
    (`sampling.recommendation`), one by one, but that an asked-for temperature of 0 is greedy and nothing else.
    """

    max_tokens: Annotated[
        int | None,
        Field(
            "most tokens of a completion",
            lowest=0,
            highest=MAX_TOKENS,
            unset=f"{DEFAULT_MAX_TOKENS} for a prompt, what the context leaves for messages",
            elsewhere=("max_new_tokens", "max_completion_tokens", "n_predict"),
            openai=False,  # each of its endpoints has its own
            metavar="N",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Field(
            "before so many tokens, neither stop ids nor stop strings end the completion",
            lowest=0,
            highest=MAX_TOKENS,
            elsewhere=("min_new_tokens",),
        ),
    ] = 0
    temperature: Annotated[
        float | None,
        Field(
            "0, or below 1e-5: always the likeliest token",
            lowest=0.0,
            highest=100.0,
            unset=_RECOMMENDED,
            metavar="T",
            kernels=True,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Field(
            "choose among the K likeliest tokens; 0 and -1: among all",
            lowest=-1,
            highest=MAX_TOKENS,
            unset=_RECOMMENDED,
            metavar="K",
            kernels=True,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Field(
            "choose among the likeliest with this total probability; 0: always the likeliest",
            lowest=0.0,
            highest=1.0,
            unset=_RECOMMENDED,
            metavar="P",
            kernels=True,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Field(
            "drop tokens less likely than P times the likeliest",
            lowest=0.0,
            highest=1.0,
            unset=_RECOMMENDED,
            metavar="P",
            kernels=True,
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Field(
            "divides (multiplies) positive (negative) logits of tokens that are in prompt or completion; above 1: "
            "repeat less",
            lowest=0.01,  # logits divided by it must stay finite
            highest=100.0,
            unset=_RECOMMENDED,
            elsewhere=("repeat_penalty",),
            metavar="R",
            kernels=True,
        ),
    ] = None
    presence_penalty: Annotated[
        float,
        Field(
            "subtracted from logits of tokens seen in the completion, once",
            lowest=-2.0,
            highest=2.0,
            kernels=True,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Field(
            "subtracted from logits of tokens seen in the completion, once for each time",
            lowest=-2.0,
            highest=2.0,
            kernels=True,
        ),
    ] = 0.0
    logit_bias: Annotated[
        dict[int, float],
        Field(
            "what is added to the logits of these tokens", lowest=-100.0, highest=100.0, token_ids=True, language=False
        ),
    ] = {}
    seed: Annotated[
        int | None,
        Field(
            "same seed, same text",
            lowest=-(2**63),
            highest=2**64 - 1,
            unset="a new one each time",
            elsewhere=("random_seed", "sampling_seed"),
            metavar="N",
            kernels=True,
        ),
    ] = None
    stop_token_ids: Annotated[list[int], Field("tokens at which the completion ends", token_ids=True)] = []
    ignore_eos: Annotated[bool, Field("the model's own end-of-turn tokens do not end the completion")] = False
    logprobs: Annotated[
        int | None,
        Field(
            "k >= 0 wants each token's natural log-probability and those of the k likeliest tokens there",
            lowest=0,
            highest=MAX_LOGPROBS,
            elsewhere=("n_probs",),
            openai=False,  # each of its endpoints has its own
        ),
    ] = None


class Sampling(SamplingParams, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=False):
    """As it travels on, checked: everyone behind the front trusts it.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off. `seed` is always set: the front draws one where
    the user gave none. A token is a function of (seed, its position in the sequence) and the logits only.
    """

    max_tokens: int  # pyright: ignore[reportGeneralTypeIssues]  # a request may leave them out, this must not
    temperature: float = 1.0  # pyright: ignore[reportIncompatibleVariableOverride]
    top_k: int = 0  # pyright: ignore[reportIncompatibleVariableOverride]
    top_p: float = 1.0  # pyright: ignore[reportIncompatibleVariableOverride]
    min_p: float = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    repetition_penalty: float = 1.0  # pyright: ignore[reportIncompatibleVariableOverride]
    seed: int  # pyright: ignore[reportGeneralTypeIssues]


class SamplingOptions(TypedDict, total=False):
    """`gen`'s keyword arguments, for editors and type checkers; a test holds them to the declaration."""

    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    ignore_eos: bool | None
    seed: int | None
    logprobs: int | None
