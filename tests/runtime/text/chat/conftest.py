"""A tokenizer with the control tokens that a test asks for, and texts of prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from sapwood.runtime.text.tokenizers.base import Fragment, Tokenizer
from sapwood.runtime.text.tokenizers.gguf_tokenizer import tokenizer_from_metadata
from sapwood.runtime.text.tokenizers.token_bytes import BYTE_OF_CHAR

NORMAL, CONTROL = 1, 3


@pytest.fixture(scope="session")
def with_control_tokens() -> Callable[[Collection[str]], Tokenizer]:
    """A tokenizer of single bytes and the control tokens given, among which are "<bos>" and "<eos>"."""

    def make(texts: Collection[str]) -> Tokenizer:
        control = sorted({*texts, "<bos>", "<eos>"})
        spellings = [*BYTE_OF_CHAR, *control]
        return tokenizer_from_metadata(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.tokens": spellings,
                "tokenizer.ggml.merges": [],
                "tokenizer.ggml.token_type": [NORMAL] * len(BYTE_OF_CHAR) + [CONTROL] * len(control),
                "tokenizer.ggml.bos_token_id": spellings.index("<bos>"),
                "tokenizer.ggml.eos_token_id": spellings.index("<eos>"),
            }
        )

    return make


@pytest.fixture(scope="session")
def shown() -> Callable[[Tokenizer, list[Fragment]], str]:
    """The text of a prompt in fragments."""
    return lambda tokenizer, fragments: "".join(
        each if isinstance(each, str) else tokenizer.token_text(each) for each in fragments
    )
