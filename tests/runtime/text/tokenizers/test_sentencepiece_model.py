"""SentencePiece .model files against transformers' AutoTokenizer and against the sentencepiece library itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.text.tokenizers.sentencepiece_proto import encode_model, load_processor

ATOMS = [
    "<s>",
    "</s>",
    "<unk>",
    "[INST]",
    " ",
    "  ",
    "hello",
    "\n",
    "▁",
    "é",
    "🚲",
    "1234",
    "<",
    "s>",
    "a b",
    "\t",
    "안녕",
    "<0x41>",
    "\u200b",
]
STRINGS = st.one_of(st.lists(st.sampled_from(ATOMS), max_size=10).map("".join), st.text(max_size=20))

CONFIGS: list[dict[str, Any]] = [
    {},
    {"tokenizer_class": "LlamaTokenizer"},
    {"tokenizer_class": "LlamaTokenizer", "legacy": True},
    {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>"},
]


@pytest.fixture(scope="module", params=["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def model_file(request: pytest.FixtureRequest, mistral_model: Path) -> Path:
    """v3 has hundreds of control tokens, "[INST]" among them."""
    return mistral_model.with_name(request.param)


def directory_with(model: Path, config: dict[str, Any], directory: Path) -> Path:
    shutil.copy(model, directory / "tokenizer.model")
    (directory / "config.json").write_text('{"model_type": "llama"}')
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_ids_equal_transformers(model_file: Path, config: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("google.protobuf", reason="transformers reads .model files with protobuf")
    directory = directory_with(model_file, config, tmp_path)
    reference, tokenizer = transformers.AutoTokenizer.from_pretrained(directory), load_tokenizer(directory)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (reference.bos_token_id, {reference.eos_token_id})

    @settings(max_examples=100, deadline=None)
    @given(STRINGS)
    def check(text: str) -> None:
        expected = reference(text).input_ids
        assert tokenizer.encode(text, add_bos=tokenizer.adds_bos, allow_control=True) == expected
        expected = reference(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert tokenizer.encode(text) == expected
        assert tokenizer.encode_fragments(tokenizer.split_control(text)) == tokenizer.encode(text, allow_control=True)

    check()


@pytest.fixture(scope="module")
def mistral(mistral_model: Path) -> Tokenizer:
    return load_tokenizer(mistral_model)


@pytest.fixture(scope="module")
def library(mistral_model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(mistral_model))


@settings(max_examples=200, deadline=None)
@given(text=STRINGS)
def test_a_bare_model_file_equals_the_library(
    mistral: Tokenizer, library: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = mistral.encode(text)
    assert ids == library.EncodeAsIds(text)
    shown = b"".join(mistral.token_bytes(i) for i in ids).decode()
    assert shown == (" " + text if text else "").replace("▁", " ")


def test_control_tokens_are_plain_text_unless_allowed(mistral: Tokenizer) -> None:
    assert not mistral.control_ids.intersection(mistral.encode("<s>hi</s>"))
    assert mistral.split_control("<s>hi</s>") == [1, "hi", 2]
    assert mistral.encode("<s>hi</s>", allow_control=True)[0] == 1


def test_a_model_written_piece_by_piece_equals_the_original(
    mistral_metadata: dict[str, Any], library: sentencepiece.SentencePieceProcessor
) -> None:
    columns = (mistral_metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    written = load_processor(encode_model(*(list(column) for column in columns)))
    for text in ["hello  world 🚲\n\n", "안녕 1234", "<s>", "x" * 50]:
        assert written.EncodeAsIds(" " + text) == library.EncodeAsIds(text)


def test_what_is_not_supported_is_refused_by_name(mistral_model: Path, tmp_path: Path) -> None:
    for config, words in [
        ({"tokenizer_class": "GemmaTokenizer"}, "GemmaTokenizer.*LlamaTokenizer"),
        ({"bos_token": {"content": "<s>", "rstrip": True}}, "<s>.*strips"),
    ]:
        with pytest.raises(UnsupportedModel, match=words):
            load_tokenizer(directory_with(mistral_model, config, tmp_path))
    clash = {"added_tokens_decoder": {"5": {"content": "<s>", "special": True}}}
    with pytest.raises(ModelError, match="id 5"):
        load_tokenizer(directory_with(mistral_model, clash, tmp_path))
    (tmp_path / "other.model").write_bytes(b"IQ== 0\n")
    with pytest.raises(UnsupportedModel, match="SentencePiece"):
        load_tokenizer(tmp_path / "other.model")


def test_tokens_past_the_model_can_be_added(mistral_model: Path, tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"32000": {"content": "<|end|>", "special": True}}, "eos_token": "<|end|>"}
    tokenizer = load_tokenizer(directory_with(mistral_model, config, tmp_path))
    assert tokenizer.vocab_size == 32001
    assert tokenizer.eos_ids == {32000}
    assert tokenizer.encode("a<|end|>", allow_control=True)[-1] == 32000
    assert tokenizer.token_bytes(32000) == b"<|end|>"
