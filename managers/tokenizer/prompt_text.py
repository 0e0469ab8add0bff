"""Where in a prompt's text, and in which message of a conversation, one of its tokens lies.

Nothing is rendered or encoded a second time for it: characters are counted by tokens, and messages are looked for in
the rendered text, from the end of it that is nearer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.text.tokenizers.base import Fragment, Tokenizer

_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
_TAIL = 64  # characters of a message that are looked for
_BETWEEN = 1024  # characters, at most, that a template puts between two messages


def characters_begun(pieces: Sequence[bytes]) -> np.ndarray:
    """How many characters each of these tokens begins; int32 [n]."""
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

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """What these tokens spell."""
        return b"".join(map(self._tokenizer.token_bytes, ids))

    def message_at(self, position: int, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> tuple[int, bool]:
        """The message in which a token lies, their number where it is behind the last one, and whether it is in its
        text, not in what the template puts before that. ended: what lies at the very end of a message belongs to the
        next one.

        What is between two messages belongs to the second one. A message that is not in the text as it was sent begins
        where the one before it ends.
        """
        if 2 * position < len(self.ids):
            return self._from_start(position, messages, ended=ended)
        return self._from_end(position, messages, ended=ended)

    def _from_start(self, position: int, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> tuple[int, bool]:
        offset, text = self.character(position), self._last(sys.maxsize)
        begun, reach = 0, 0  # where the last message that was found ends, and how far what follows it may be away
        first = 0  # message that was not found yet
        for index, message in enumerate(messages):
            content = content_of(message).strip()
            reach += _BETWEEN + len(content)
            tail = content[-_TAIL:]
            found = text.find(tail, begun, begun + reach) if tail else -1
            if found < 0:
                continue
            stop = found + len(tail)
            if offset < stop or (offset == stop and not ended):
                is_inside = offset >= stop - len(content)
                return (index, True) if is_inside else (first, False)
            begun, reach, first = stop, 0, index + 1
        return first, False

    def _from_end(self, position: int, messages: Sequence[Mapping[str, Any]], *, ended: bool) -> tuple[int, bool]:
        rest = int(self._characters[self.ids[position:]].sum())
        text = self._last(rest + 2 * _BETWEEN)
        offset, end, reach = len(text) - rest, len(text), 0
        for index in range(len(messages) - 1, -1, -1):
            content = content_of(messages[index]).strip()
            reach += _BETWEEN
            tail = content[-_TAIL:]
            found = text.rfind(tail, max(0, end - reach), max(0, end)) if tail else -1
            if found < 0:
                reach += len(content)
                continue
            stop = found + len(tail)
            if offset > stop or (ended and offset == stop):
                return index + 1, False
            end, reach = stop - len(content), 0
            if offset >= end:
                return index, True
        return 0, False

    def _last(self, characters: int) -> str:
        """At least so many of the text's last characters, where it has them. Control tokens are only as long."""
        parts: list[str] = []
        for each in reversed(self._fragments or ()):
            if characters <= 0:
                break
            parts.append(each if isinstance(each, str) else "\0" * self._characters.item(each))
            characters -= len(parts[-1])
        parts.reverse()
        return "".join(parts)


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message, parts of it joined."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
