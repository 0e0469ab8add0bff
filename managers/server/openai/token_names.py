"""How a token is written in log-probabilities, where it may be only part of a character."""

from __future__ import annotations

from ...wire.answers import Alternative, TokenLogprob


def token_name(token: TokenLogprob | Alternative) -> str:
    """The token's text, or its bytes in OpenAI's notation where they are not whole characters: `bytes:\\xf0\\x9f`."""
    if token.text.encode() == token.data:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
