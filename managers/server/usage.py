"""Token counts as OpenAI's clients read them, the same on every endpoint."""

from __future__ import annotations

import msgspec


class PromptDetails(msgspec.Struct, frozen=True):
    """cached_tokens: prompt tokens that earlier work had computed."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """A prompt counts once, however many samples it has; a list of prompts is summed.

    Scoring sums over the continuations, each a prompt of its own that mostly finds itself cached.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
