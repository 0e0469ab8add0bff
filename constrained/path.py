"""The way that one completion has come in its grammar: its tokens, their bytes, and the matcher at their end."""

from __future__ import annotations

import bisect

from .engines.base import Matcher


class Path:
    """The tokens of a completion beside the matcher that has accepted them."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.token_ids: list[int] = []
        self.text = bytearray()
        self._ends: list[int] = []  # the offset in the text after every token

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, token_id: int) -> None:
        """A token that the matcher has accepted."""
        self.token_ids.append(token_id)
        self.text += self.matcher.vocabulary.token_bytes[token_id]
        self._ends.append(len(self.text))

    def start_of(self, index: int) -> int:
        """Where token `index` begins in the text; for the index after the last token, the text's length."""
        return self._ends[index - 1] if index else 0

    def tokens_from(self, offset: int) -> int:
        """How many tokens reach beyond `offset`."""
        return len(self) - self.tokens_within(offset)

    def tokens_within(self, offset: int) -> int:
        """How many tokens end at or before `offset`."""
        return bisect.bisect_right(self._ends, offset)

    def truncate(self, length: int) -> None:
        """Back to so many tokens; the matcher goes along."""
        self.matcher.rollback(len(self) - length)
        del self.token_ids[length:], self._ends[length:]
        del self.text[self.start_of(length) :]
