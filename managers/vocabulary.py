"""From the model's tokenizer to the vocabulary that grammar engines work with."""

from __future__ import annotations

from ..constrained.vocabulary import Encode, Vocabulary
from ..runtime.text.tokenizers.base import Tokenizer

_MARK = "\x02"  # a character that no token joins to its neighbours


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of `tokenizer`; raises ValueError for a model without an end token."""
    ids = range(tokenizer.vocab_size)
    return Vocabulary(map(tokenizer.token_bytes, ids), tokenizer.eos_ids, tokenizer.control_ids, _continuing(tokenizer))


def _continuing(tokenizer: Tokenizer) -> Encode:
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
