"""The way that one completion has come in its grammar: its tokens, their bytes, and the matcher at their end."""

from __future__ import annotations

import bisect

from ..engines.base import Matcher


class Path:
    """The tokens of a completion beside the matcher that has accepted them. text: see `Vocabulary.mark`."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.token_ids: list[int] = []
        self.text = bytearray()
        self.ends: list[int] = []  # the offset in the text after every token

    def __len__(self) -> int:
        return len(self.token_ids)

    def copy(self) -> Path:
        """The way so far, to be read only: the matcher does not go along."""
        path = Path(self.matcher)
        path.token_ids, path.text, path.ends = list(self.token_ids), bytearray(self.text), list(self.ends)
        return path

    def append(self, token_id: int) -> None:
        """A token that the matcher has accepted."""
        self.token_ids.append(token_id)
        self.text += self.matcher.vocabulary.mark(token_id)
        self.ends.append(len(self.text))

    def start_of(self, index: int) -> int:
        """Where token `index` begins in the text; for the index after the last token, the text's length."""
        return self.ends[index - 1] if index else 0

    def tokens_from(self, offset: int) -> int:
        """How many tokens reach beyond `offset`."""
        return len(self) - self.tokens_within(offset)

    def start_before(self, offset: int) -> int:
        """Where the token begins that holds the byte before `offset`."""
        return self.start_of(bisect.bisect_left(self.ends, offset))

    def tokens_within(self, offset: int) -> int:
        """How many tokens end at or before `offset`."""
        return bisect.bisect_right(self.ends, offset)

    def truncate(self, length: int) -> None:
        """Back to so many tokens; the matcher goes along."""
        self.matcher.rollback(len(self) - length)
        del self.token_ids[length:], self.ends[length:]
        del self.text[self.start_of(length) :]
