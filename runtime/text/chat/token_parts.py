"""Token ids as part of a message's content: a template places a text that stands for them.

That text is drawn anew for every conversation, so that no user can have written it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from ...errors import TemplateError
from .own_text import OwnText

_DIGITS = 7


class TokenParts:
    """The token ids in the contents of one conversation. Stand-ins are of digits: filters leave those alone."""

    def __init__(self) -> None:
        self._nonce = f"{secrets.randbits(128):039d}"
        self._runs: list[list[int]] = []
        self._messages: list[int] = []

    def stand_in(self, message: int, ids: list[int]) -> str:
        """The text that stands for these ids, in message number `message`; "" for none."""
        if not ids:
            return ""
        self._runs.append(ids)
        self._messages.append(message)
        return f"{self._nonce}{len(self._runs) - 1:0{_DIGITS}d}"

    def split(self, text: OwnText) -> Iterator[OwnText | list[int]]:
        """A rendered text in order: what is between the stand-ins, and the ids in place of them.

        Raises TemplateError, naming the message, where the template left one out.
        """
        found = list(re.finditer(rf"{self._nonce}(\d{{{_DIGITS}}})", text)) if self._runs else []
        missing = set(range(len(self._runs))).difference(int(match[1]) for match in found)
        if missing:
            i = self._messages[min(missing)]
            raise TemplateError(f"messages[{i}] has token ids that the chat template leaves out", ("messages", i))
        end = 0
        for match in found:
            yield _piece(text, end, match.start())
            yield self._runs[int(match[1])]
            end = match.end()
        yield _piece(text, end, len(text))


def _piece(text: OwnText, start: int, end: int) -> OwnText:
    return OwnText(str.__getitem__(text, slice(start, end)), text.own_mask[start:end])
