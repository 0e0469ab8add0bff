"""From a token's spelling in a vocabulary to its exact bytes, for byte-level and SentencePiece vocabularies.

Byte-level spelling is GPT-2's: every byte is one printable character.
Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode).
"""

from __future__ import annotations

import re

SPACE = "▁"  # how SentencePiece writes a space

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()


def byte_level(spelling: str) -> bytes:
    """The bytes of a byte-level token; a character outside the byte alphabet makes the whole token plain UTF-8."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in spelling])
    except KeyError:
        return spelling.encode("utf-8")


def sentencepiece(spelling: str) -> bytes:
    """The bytes of a SentencePiece token: "▁" is a space and "<0x41>" one byte."""
    if byte := _BYTE_PIECE.fullmatch(spelling):
        return bytes([int(byte[1], 16)])
    return spelling.replace(SPACE, " ").encode("utf-8")
