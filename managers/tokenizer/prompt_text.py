"""Where in a prompt's text, and in which message of a conversation, one of its tokens lies.

Nothing is rendered or encoded a second time for it: characters are counted by tokens, and messages are looked for in
the rendered text, from its end on, where prompts mostly leave the cached path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.text.tokenizers.base import Fragment, Tokenizer

_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
_TAIL = 64  # characters of a message that are looked for
_BETWEEN = 4096  # characters, at most, that a template puts between two messages


def characters_begun(tokenizer: Tokenizer) -> np.ndarray:
    """How many characters each token of the vocabulary begins; int32 [vocab_size]."""
    pieces = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    return np.array([len(piece.translate(None, _CONTINUATION)) for piece in pieces], dtype=np.int32)


class PromptText:
    """One prompt. ids: int32 [n]. fragments: what they were encoded from, for a conversation."""

    def __init__(
        self, tokenizer: Tokenizer, characters: np.ndarray, ids: np.ndarray, fragments: Sequence[Fragment] | None
    ) -> None:
        self.ids = ids
        self._tokenizer = tokenizer
        self._characters = characters
        self._fragments = fragments

    def character(self, position: int) -> int:
        """How many characters the tokens before this position begin."""
        return int(self._characters[self.ids[:position]].sum())

    def spelled(self, ids: Sequence[int]) -> str:
        """Tokens as text."""
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")

    def message_at(self, position: int, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> tuple[int, bool]:
        """The message in which a token lies, their number where it is behind the last one, and whether it is in its
        text, not in what the template puts before that. ended: what lies at the very end of a message belongs to the
        next one.

        What is between two messages belongs to the second one. A message that is not in the text as it was sent begins
        where the one before it ends.
        """
        rest = int(self._characters[self.ids[position:]].sum())
        spell = self._tokenizer.token_text
        text = "".join(each if isinstance(each, str) else spell(each) for each in self._fragments or ())
        offset, end, unseen = len(text) - rest, len(text), 0
        for index in range(len(messages) - 1, -1, -1):
            content = content_of(messages[index]).strip()
            tail = content[-_TAIL:]
            found = text.rfind(tail, max(0, end - _BETWEEN - unseen), end) if tail else -1
            if found < 0:
                unseen += len(content) + _BETWEEN
                continue
            stop = found + len(tail)
            if offset > stop or (ended and offset == stop):
                return index + 1, False
            end, unseen = max(0, stop - len(content)), 0
            if offset >= end:
                return index, True
        return 0, False


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message, parts of it joined."""
    return "".join(_texts(message))


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
