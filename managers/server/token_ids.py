"""The prompt's token ids in answers, where a request wants them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ..front.generation import Completion
from ..wire.answers import TextChunk


def prompt_token_ids(told: TextChunk | Completion) -> list[int] | UnsetType:
    """Those that a first chunk, or a first completion, has."""
    return UNSET if told.prompt_ids is None else told.prompt_ids
