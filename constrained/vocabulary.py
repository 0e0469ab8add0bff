"""A model's vocabulary as grammar engines need it, made of what a tokenizer says. It must import no tokenizer: whoever
compiles or loads constraints hands one in.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from xgrammar import TokenizerInfo

Encode = Callable[[str], list[int]]

_MARK = "\x02"  # a character that no token joins to its neighbours

# Sets of tokens that llguidance takes as a whole where the grammar allows all of them: what a JSON string can hold that
# has room for so many characters. Without sets for short ones the mask of a short string takes ten times as long.
_STRING_CHARACTER = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+"]
_SLICES += [f"{_STRING_CHARACTER}{{1,{length}}}" for length in (5, 10, 15, 20, 30)]
_SLICES += [f"{_STRING_CHARACTER}+"]


class TokenSource(Protocol):
    """What a vocabulary is made of: a model's tokenizer has it all. ids are 0 .. vocab_size - 1."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def control_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str) -> list[int]: ...


def vocabulary_of(tokenizer: TokenSource) -> Vocabulary:
    """The vocabulary of `tokenizer`; raises ValueError for a model without an end token."""
    ids = range(tokenizer.vocab_size)
    return Vocabulary(map(tokenizer.token_bytes, ids), tokenizer.eos_ids, tokenizer.control_ids, _continuing(tokenizer))


def _continuing(tokenizer: TokenSource) -> Encode:
    """`tokenizer.encode` for text that goes on: where it puts a space before every text, text after a mark."""

    def spell(ids: list[int]) -> bytes:
        return b"".join(map(tokenizer.token_bytes, ids))

    if spell(tokenizer.encode("a")) == b"a":
        return tokenizer.encode
    head = tokenizer.encode(_MARK)

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(_MARK + text)
        return ids[len(head) :] if ids[: len(head)] == head else tokenizer.encode(text)

    return encode


class Vocabulary:
    """Which bytes each token adds to a completion, which tokens end it, and how text becomes tokens.

    token_bytes: one entry an id, b"" for ids that add nothing to a text (no such token; control and end tokens).
    eos_ids: the ids that end a completion, sorted, at least one. control_ids: ids that a grammar allows only where it
    names them, but for those in `eos_ids` where the completion may end.
    encode: a text to token ids, as the model's tokenizer does it for text that goes on: without BOS, without a space
    put before it, and never with a control token. It may fail to spell a text (then the ids' bytes differ from it).
    """

    def __init__(
        self, token_bytes: Iterable[bytes], eos_ids: Iterable[int], control_ids: Iterable[int], encode: Encode
    ) -> None:
        """Raises ValueError where no id ends a completion, or an id is not in the vocabulary."""
        self.eos_ids = sorted(set(eos_ids))
        self.control_ids = frozenset(control_ids)
        self.token_bytes = list(token_bytes)
        self.encode = encode
        silent = self.control_ids.union(self.eos_ids)
        if not self.eos_ids:
            raise ValueError("the model names no token that ends a completion, which constraints need")
        if min(silent) < 0 or max(silent) >= len(self.token_bytes):
            raise ValueError(f"a control or end token is not among the {len(self.token_bytes)} ids of the vocabulary")
        for token_id in silent:
            self.token_bytes[token_id] = b""

    def __len__(self) -> int:
        return len(self.token_bytes)

    def prepare(self) -> None:
        """Build every table that matchers and jump-forward use, which takes a tenth of a second, now."""
        tables = self.usable_bits, self.byte_tokens, self._sorted, self._first_bytes, self._first_byte_bits
        assert all(len(table) for table in tables)

    @property
    def words(self) -> int:
        """The int32 words of a bitmask with one bit for every token."""
        return (len(self) + 31) // 32

    def spell(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that these tokens add to a text."""
        return b"".join([self.token_bytes[token_id] for token_id in token_ids])

    def mark(self, token_id: int) -> bytes:
        """What stands for a token in the record of a completion: its bytes; for control tokens, which add nothing to a
        text, something that no text holds."""
        return self.token_bytes[token_id] or (b"\xff[%d]" % token_id if token_id in self.control_ids else b"")

    def bits(self, token_ids: Iterable[int]) -> np.ndarray:
        """A bitmask, int32 [words], with just these tokens: token i at bit i % 32 of word i // 32."""
        flags = np.zeros(self.words * 32, dtype=np.uint8)
        flags[list(token_ids)] = 1
        return np.packbits(flags, bitorder="little").view(np.int32)

    @cached_property
    def eos_bits(self) -> np.ndarray:
        """The bitmask of the end tokens."""
        return self.bits(self.eos_ids)

    @cached_property
    def usable_bits(self) -> np.ndarray:
        """The bitmask of all that a grammar may allow without naming it: tokens with bytes, and the end tokens."""
        return self.bits([token_id for token_id, data in enumerate(self.token_bytes) if data]) | self.eos_bits

    @cached_property
    def _first_byte_bits(self) -> np.ndarray:
        """int32 [256, words]: for every byte the bitmask of the tokens that begin with it."""
        rows: list[list[int]] = [[] for _ in range(256)]
        for token_id, data in enumerate(self.token_bytes):
            if data:
                rows[data[0]].append(token_id)
        return np.stack([self.bits(row) for row in rows])

    @cached_property
    def _first_bytes(self) -> np.ndarray:
        """int16 [tokens]: the byte that each token begins with; 256 for tokens without bytes."""
        return np.array([data[0] if data else 256 for data in self.token_bytes], dtype=np.int16)

    def first_bytes(self, bitmask: np.ndarray) -> list[int]:
        """The bytes that tokens in `bitmask` begin with, in order."""
        flags = np.unpackbits(bitmask.view(np.uint8), count=len(self), bitorder="little").view(bool)
        return np.flatnonzero(np.bincount(self._first_bytes[flags], minlength=257)[:256]).tolist()

    def only_first_byte(self, bitmask: np.ndarray) -> int | None:
        """The byte that all tokens in `bitmask` begin with; None where there is no one such byte."""
        words = np.flatnonzero(bitmask)
        if not len(words):
            return None
        word = int(bitmask[words[0]])
        data = self.token_bytes[int(words[0]) * 32 + (word & -word).bit_length() - 1]
        return data[0] if data and not np.any(bitmask & ~self._first_byte_bits[data[0]]) else None

    def has_first_byte(self, bitmask: np.ndarray, byte: int) -> bool:
        """Whether some token in `bitmask` begins with `byte`."""
        return bool(np.any(bitmask & self._first_byte_bits[byte]))

    @cached_property
    def byte_tokens(self) -> dict[int, int]:
        """The token of every single byte that has one."""
        return {data[0]: token_id for token_id, data in enumerate(self.token_bytes) if len(data) == 1}

    def starting_with(self, prefix: bytes) -> list[int]:
        """The ids of all tokens that begin with `prefix` (not empty), in order of their bytes."""
        spellings, ids = self._sorted
        start = bisect.bisect_left(spellings, prefix)
        return ids[start : bisect.bisect_left(spellings, prefix + b"\xff" * 8, start)] if prefix else []

    def beginning(self, text: bytes) -> list[int]:
        """The ids of all tokens that `text` begins with."""
        spellings, ids = self._sorted
        found: list[int] = []
        for size in range(1, min(len(text), self.longest) + 1):
            at = bisect.bisect_left(spellings, text[:size])
            while at < len(ids) and spellings[at] == text[:size]:
                found.append(ids[at])
                at += 1
        return found

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest token."""
        return max(map(len, self.token_bytes))

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        marks = [self.mark(token_id) for token_id in range(len(self))]
        ids = sorted(range(len(self)), key=marks.__getitem__)
        return [marks[token_id] for token_id in ids], ids

    @cached_property
    def llguidance_tokenizer(self) -> LLTokenizer:
        """The vocabulary in the form that llguidance's matchers share."""
        import llguidance

        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Wrapped(self)),
            n_vocab=len(self),
            eos_token=self.eos_ids,
            slices=_SLICES,
        )

    @cached_property
    def xgrammar_info(self) -> TokenizerInfo:
        """The vocabulary in the form that xgrammar's compiler and matchers share. Imports xgrammar, and so torch."""
        import xgrammar

        return xgrammar.TokenizerInfo(
            self.token_bytes, xgrammar.VocabType.RAW, vocab_size=len(self), stop_token_ids=self.eos_ids
        )


class _Wrapped:
    """What llguidance asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = vocabulary.eos_ids
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8"))
