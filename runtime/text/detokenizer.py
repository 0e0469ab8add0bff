"""Token ids to text as they come, and stop strings in that text. Neither ever takes back what it gave out."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Mapping, Sequence

from .tokenizers.base import Tokenizer


class Detokenizer:
    """The text of one growing sequence of token ids: joined answers equal the text of all their bytes at once.

    Bytes that do not yet make a character are held; bytes that never can become U+FFFD, as in any UTF-8 decoder.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, stand_ins: Mapping[int, str] = {}
    ) -> None:
        """stand_ins: what is given out for certain tokens in place of their own text, even for skipped ones."""
        self._tokenizer = tokenizer
        self._stand_ins = stand_ins
        self._skipped = tokenizer.control_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int], shown: Collection[int] = ()) -> str:
        """The text that these next tokens complete; may be empty. shown: ids that are not skipped this time."""
        if self._stand_ins:
            return "".join(self._one(token_id, shown) for token_id in token_ids)
        token_bytes = self._tokenizer.token_bytes
        kept = (i for i in token_ids if i not in self._skipped or i in shown)
        return self._decoder.decode(b"".join(map(token_bytes, kept)))

    def _one(self, token_id: int, shown: Collection[int]) -> str:
        stand_in = self._stand_ins.get(token_id)
        if stand_in is None:
            is_left_out = token_id in self._skipped and token_id not in shown
            return self._decoder.decode(b"" if is_left_out else self._tokenizer.token_bytes(token_id))
        before = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return before + stand_in

    def flush(self) -> str:
        """At the end of the sequence: U+FFFD for a character that was left unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces; how it is cut into pieces makes no difference.

    First is the match that ends first, since it is complete before any other; of two that end together, the longer.
    Text is held back only while it is a beginning of some stop string that can still be the first match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("a stop string cannot be empty")
        # A stop string with another one inside, ending earlier, can never be the first match.
        self._stops = [stop for stop in dict.fromkeys(stops) if not any(other in stop[:-1] for other in stops)]
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that can be given out, stop string found). After a match nothing more may be pushed or flushed.

        The text given out ends before the stop string.
        """
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            return text[:start], stop
        safe = min((_beginning(text, stop) for stop in self._stops), default=len(text))
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """At the end of the text: what was held back."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Where the longest tail of `text` that is a beginning of `stop` starts; len(text) where there is none."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return start if start >= 0 else len(text)
