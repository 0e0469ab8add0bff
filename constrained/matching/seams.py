"""Where a text goes on, which of its last tokens may turn out differently once more text follows."""

from __future__ import annotations

from functools import lru_cache

from ..vocabulary import Vocabulary

TAIL_TOKENS = 4  # how many of the last tokens are looked at
_MANY = 128  # candidates beyond which only their first bytes are tried, and all count as threats
_KEPT = 4096  # tails remembered


class Seams:
    """Knows for the end of any token sequence which next bytes may change it. Shared by all requests of a model.

    A token that crosses the end of a text is one of the vocabulary that begins with the text's last bytes, so every
    such token is tried: if the tokenizer, given the text and the rest of that token, does not use it, it is no threat.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.unstable = lru_cache(_KEPT)(self._unstable)

    def _unstable(self, tail: tuple[int, ...]) -> dict[int, int]:
        """For every next byte that may change tokens of `tail`: how many of them, counted from the end."""
        text, known = self._known(tail)
        spellings = [self._vocabulary.token_bytes[token_id] for token_id in tail]
        data = b"".join(spellings)
        unstable: dict[int, int] = {}
        for size in range(1, min(len(data), self._vocabulary.longest) + 1):
            crossed = _covering(spellings, size)
            rests, are_all = self._rests(data[-size:])
            for rest in rests:
                if unstable.get(rest[0], 0) <= crossed:
                    changed = self._changed(text, known, rest) if crossed <= len(known) else None
                    if changed is None:  # what is crossed, and the token before, which may get a part of it
                        changed = min(crossed + 1, len(tail))
                    elif not are_all:
                        changed = max(changed, crossed)
                    unstable[rest[0]] = max(unstable.get(rest[0], 0), changed)
        return {byte: count for byte, count in unstable.items() if count}

    def _known(self, tail: tuple[int, ...]) -> tuple[str, list[int]]:
        """The last tokens, and their text, as far back as the tokenizer would cut it so."""
        for start in range(len(tail)):
            token_ids = list(tail[start:])
            text = _decoded(self._vocabulary.spell(token_ids))
            if text is not None and self._vocabulary.encode(text) == token_ids:
                return text, token_ids
        return "", []

    def _rests(self, suffix: bytes) -> tuple[list[bytes], bool]:
        """What may follow `suffix` within one token, and True; where that is much, only its first bytes, and False."""
        token_ids = self._vocabulary.starting_with(suffix)
        if len(token_ids) <= _MANY:
            grown = [self._vocabulary.token_bytes[token_id][len(suffix) :] for token_id in token_ids]
            return [rest for rest in grown if rest], True
        each_byte = [bytes([byte]) for byte in range(256)]
        return [byte for byte in each_byte if self._vocabulary.starting_with(suffix + byte)], False

    def _changed(self, text: str, old: list[int], rest: bytes) -> int | None:
        """How many of the tokens of `text`, which are `old`, are others where `rest` follows. None: unknown."""
        more = _decoded(rest)
        if more is None:
            return None
        new = self._vocabulary.encode(text + more)
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        return len(old) - same


def _covering(spellings: list[bytes], size: int) -> int:
    """How many of the last tokens hold the last `size` bytes."""
    count = 0
    while size > 0:
        count += 1
        size -= len(spellings[-count])
    return count


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
