"""Finds the control tokens in a rendered prompt: only where every character of one is the template's own.

What users wrote is hidden from the tokenizer while it looks, so that it neither is, completes nor breaks such a token.
"""

from __future__ import annotations

import re

from ..tokenizers.base import Fragment, Tokenizer
from .own_text import OwnText, plain

_PRIVATE = range(0x10F000, 0x10FFFE)  # Supplementary Private Use Area-B: characters without a meaning of their own
_RUN = re.compile(rb"\x01+|\x00+")


class ControlText:
    """A model's control tokens in the texts of one template."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """`source` is the template's."""
        texts = {tokenizer.token_bytes(i).decode("utf-8", "replace") for i in tokenizer.control_ids} - {""}
        self._texts = sorted(texts)
        self._tokenizer = tokenizer
        joined = source + "".join(self._texts)
        self._stand_in = next(chr(code) for code in _PRIVATE if chr(code) not in joined)
        self._has_space = any(char.isspace() for text in texts for char in text)

    def is_in(self, word: str) -> bool:
        """Whether `word` holds a control token's text."""
        return any(text in word for text in self._texts)

    def split(self, text: OwnText) -> list[Fragment]:
        """`text` as plain text and the ids of control tokens."""
        shown: list[str] = []
        hidden: list[str] = []
        for run in _RUN.finditer(text.own_mask):
            piece = plain(text)[run.start() : run.end()]
            if run[0][0] and self._stand_in not in piece:
                shown.append(piece)
            else:
                before, inner, after = self._around(piece)
                shown += [before, self._stand_in, after] if inner else [piece]
                hidden += [inner] if inner else []
        originals = iter(hidden)
        return [
            fragment if isinstance(fragment, int) else re.sub(self._stand_in, lambda _: next(originals), fragment)
            for fragment in self._tokenizer.split_control("".join(shown))
        ]

    def _around(self, piece: str) -> tuple[str, str, str]:
        """A user's text and the space around it, which stays in sight: some control tokens take in space beside them.

        Where it could be part of a control token's text, it is hidden with the rest.
        """
        if self._has_space:
            return "", piece, ""
        inner = piece.strip()
        start = piece.index(inner)
        return (piece[:start], inner, piece[start + len(inner) :]) if inner else ("", "", piece)
