"""What grammar engines are told about a model's vocabulary."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.constrained.vocabulary import Vocabulary
from sapwood.runtime.text.tokenizers.base import Tokenizer

TEXTS = ["a", " a", '{"name":"Zoë"}', "naïve 🚲 安", "\n\n  x", "it's 12345", ""]


def as_mask(vocabulary: Vocabulary, token_ids: list[int]) -> np.ndarray:
    mask = np.zeros(vocabulary.words, np.int32)
    for token_id in token_ids:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)
    return mask


def test_tokens_have_the_bytes_they_add_and_silent_ones_none(smollm2_tokenizer: Tokenizer, smollm2: Vocabulary) -> None:
    assert len(smollm2) == smollm2_tokenizer.vocab_size
    assert smollm2.eos_ids == sorted(smollm2_tokenizer.eos_ids)
    silent = smollm2_tokenizer.control_ids | smollm2_tokenizer.eos_ids
    assert all(smollm2.token_bytes[token_id] == b"" for token_id in silent)
    others = random.Random(1).sample(sorted(set(range(len(smollm2))) - silent), 500)
    assert all(smollm2.token_bytes[i] == smollm2_tokenizer.token_bytes(i) for i in others)


@pytest.mark.parametrize("text", TEXTS)
def test_encode_spells_a_text_that_goes_on(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.spell(vocabulary.encode(text)) == text.encode()


def test_encode_gives_no_control_token(vocabulary: Vocabulary) -> None:
    assert vocabulary.control_ids.isdisjoint(vocabulary.encode("<s>[INST]<|im_start|></s>"))


def test_sentencepiece_text_is_encoded_as_after_other_text(mistral_tokenizer: Tokenizer, mistral: Vocabulary) -> None:
    before = mistral_tokenizer.encode("Well:")
    assert mistral_tokenizer.encode('Well:{"name') == before + mistral.encode('{"name')


@pytest.mark.parametrize("prefix", [b"a", b'"', b" the", b"\xf0\x9f", b"qqqq"])
def test_tokens_are_found_by_their_beginning(smollm2: Vocabulary, prefix: bytes) -> None:
    expected = {i for i, data in enumerate(smollm2.token_bytes) if data.startswith(prefix)}
    found = smollm2.starting_with(prefix)
    assert set(found) == expected
    assert len(found) == len(expected)


@given(st.lists(st.integers(0, 262), max_size=20))
def test_first_bytes_of_a_mask(toy: Vocabulary, token_ids: list[int]) -> None:
    mask = as_mask(toy, token_ids)
    assert (toy.bits(token_ids) == mask).all()
    firsts = {toy.token_bytes[i][0] for i in token_ids if toy.token_bytes[i]}
    assert toy.first_bytes(mask) == sorted(firsts)
    assert [byte for byte in range(256) if toy.has_first_byte(mask, byte)] == sorted(firsts)
    is_one = len(firsts) == 1 and all(toy.token_bytes[i] for i in token_ids)
    assert toy.only_first_byte(mask) == (firsts.pop() if is_one else None)


def test_usable_tokens_have_bytes_or_end(toy: Vocabulary) -> None:
    usable = [i for i, data in enumerate(toy.token_bytes) if data or i in (260, 262)]
    assert (toy.usable_bits == as_mask(toy, usable)).all()
    assert (toy.eos_bits == as_mask(toy, [260, 262])).all()
    assert 259 not in usable
    assert toy.token_bytes[259] == b"", "a control token's own text is nothing that a grammar may see"


def test_a_vocabulary_needs_an_end() -> None:
    with pytest.raises(ValueError, match="no token that ends"):
        Vocabulary([b"a"], [], [], lambda text: [])


@pytest.mark.parametrize(("eos", "control"), [([2], []), ([0], [-1])])
def test_ids_must_be_in_the_vocabulary(eos: list[int], control: list[int]) -> None:
    with pytest.raises(ValueError, match="among the 2 ids"):
        Vocabulary([b"a", b"b"], eos, control, lambda text: [])
