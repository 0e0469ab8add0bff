"""Texts and conversations as tokens, and tokens as text, for who only asks; nothing is computed."""

from __future__ import annotations

from ..wire.questions import DetokenizeCall, TokenizeCall, Tokenized
from .prompt_encoding import PromptEncoder, encoding_work


def tokenized(encoder: PromptEncoder, call: TokenizeCall | DetokenizeCall) -> Tokenized:
    """The answer. Raises InvalidRequest where a conversation cannot be rendered."""
    if isinstance(call, TokenizeCall):
        token_ids = encoder.prompt_ids(call.submit)
    else:
        token_ids = call.token_ids
    return Tokenized(call.call_id, token_ids, encoder.pieces(token_ids))


def tokenizing_work(call: TokenizeCall | DetokenizeCall) -> int:
    """How much there is to do, in bytes or so."""
    return encoding_work(call.submit) if isinstance(call, TokenizeCall) else 8 * len(call.token_ids)
