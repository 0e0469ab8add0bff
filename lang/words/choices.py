"""How `select` decides: from the log-probabilities of every choice's tokens to one score per choice.

Throughout, l(i, t) is the natural log-probability of token t of choice i, given the prompt and the choice's tokens
before it. A choice's tokens are those from the first one on that differs from the prompt's own: where the choice's
first characters merge with the prompt's last ones into a token, that token is the choice's. Where there is no prompt,
the token for the start of a text stands before the choices; and where a choice changes the prompt's very first token,
all are scored as prompt and choice in one, without a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..errors import ProgramMisuse

ChoicesMethod = Literal[
    "token_length_normalized", "total_likelihood", "greedy_token_selection", "unconditional_likelihood_normalized"
]
token_length_normalized: Final = "token_length_normalized"
total_likelihood: Final = "total_likelihood"
greedy_token_selection: Final = "greedy_token_selection"
unconditional_likelihood_normalized: Final = "unconditional_likelihood_normalized"


@dataclass(frozen=True)
class ScoredToken:
    """One token of a choice: its id (None where an API does not tell), its text, its natural log-probability."""

    token_id: int | None
    text: str
    logprob: float


@dataclass(frozen=True)
class Scored:
    """One choice. unconditional: its tokens' log-probabilities without the prompt, where the method wants them."""

    tokens: tuple[ScoredToken, ...]
    unconditional: tuple[float, ...] = ()


@dataclass(frozen=True)
class Decision:
    """index: the choice taken, the first one among equals. scores: one per choice, higher is better."""

    index: int
    scores: tuple[float, ...]


def decide(method: str, scored: Sequence[Scored]) -> Decision:
    """The decision of one of `METHODS`."""
    return METHODS[method](scored)


def needs_unconditional(method: str) -> bool:
    """Whether the method wants `Scored.unconditional`."""
    return method == unconditional_likelihood_normalized


def by_mean(scored: Sequence[Scored]) -> Decision:
    """token_length_normalized: the mean over t of l(i, t).

    Source: "normalized by token length" in https://blog.eleuther.ai/multiple-choice-normalization/.
    """
    return _best([_mean([each.logprob for each in one.tokens]) for one in scored])


def by_total(scored: Sequence[Scored]) -> Decision:
    """total_likelihood: the sum over t of l(i, t), the log-likelihood of the whole choice; it favours short ones.

    Source: "unnormalized" in https://blog.eleuther.ai/multiple-choice-normalization/.
    """
    return _best([math.fsum(each.logprob for each in one.tokens) for one in scored])


def by_unconditional(scored: Sequence[Scored]) -> Decision:
    """unconditional_likelihood_normalized: the mean over t of l(i, t) - u(i, t).

    u(i, t) is the log-probability of the same token without the prompt: given the token that stands for the start of a
    text (BOS, or the end-of-text token of a model that has none) and the choice's tokens before it. Without the mean
    this is the pointwise mutual information of prompt and choice, which does not favour choices that are likely anyway.
    Source: "unconditional likelihood normalized" in https://blog.eleuther.ai/multiple-choice-normalization/, after
    Holtzman et al., "Surface Form Competition", EMNLP 2021.
    """
    return _best([_mean([each.logprob - free for each, free in zip(one.tokens, one.unconditional)]) for one in scored])


def by_greedy_tokens(scored: Sequence[Scored]) -> Decision:
    """greedy_token_selection: what greedy decoding would say, were it held to the choices.

    Token by token, those choices stay whose token has the highest log-probability there; a choice that has no token
    left stands with the mean of its own. The first of those that stay to the end is taken. Its score is the number of
    tokens for which a choice stayed. Source: SGLang's method of this name; here equality of tokens, not of their
    rounded log-probabilities, decides who stays.
    """
    alive = list(range(len(scored)))
    stayed = [0] * len(scored)
    for t in range(max(len(one.tokens) for one in scored)):
        best = max(alive, key=lambda i: _padded(scored[i], t))
        alive = [i for i in alive if i == best or _same_token(scored[i], scored[best], t)]
        for i in alive:
            stayed[i] += 1
        if len(alive) == 1:
            break
    return Decision(alive[0], tuple(map(float, stayed)))


METHODS: dict[str, Callable[[Sequence[Scored]], Decision]] = {
    token_length_normalized: by_mean,
    total_likelihood: by_total,
    greedy_token_selection: by_greedy_tokens,
    unconditional_likelihood_normalized: by_unconditional,
}


def check_choices(choices: Sequence[str], method: str) -> tuple[str, ...]:
    """The choices, if there is something to choose from. Raises ProgramMisuse."""
    is_list = isinstance(choices, Iterable) and not isinstance(choices, str)
    choices = tuple(choices) if is_list else ()
    if not is_list or not all(isinstance(each, str) for each in choices):
        raise ProgramMisuse("choices must be a list of texts.")
    if not choices:
        raise ProgramMisuse("choices is empty; select needs at least one.")
    if "" in choices:
        raise ProgramMisuse("choices holds an empty text; there is nothing to score in it.")
    if len(set(choices)) < len(choices):
        twice = next(each for i, each in enumerate(choices) if each in choices[:i])
        raise ProgramMisuse(f"choices holds {twice!r} twice.")
    if method not in METHODS:
        raise ProgramMisuse(f"choices_method must be one of {', '.join(METHODS)}; not {method!r}.")
    return choices


def _best(scores: list[float]) -> Decision:
    return Decision(max(range(len(scores)), key=scores.__getitem__), tuple(scores))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _padded(one: Scored, t: int) -> float:
    return one.tokens[t].logprob if t < len(one.tokens) else _mean([each.logprob for each in one.tokens])


def _same_token(one: Scored, other: Scored, t: int) -> bool:
    """Both have a token here, and it is the same. (Those before it are, or one of the two would be gone.)"""
    if t >= len(one.tokens) or t >= len(other.tokens):
        return False
    a, b = one.tokens[t], other.tokens[t]
    return (a.token_id, a.text) == (b.token_id, b.text)
