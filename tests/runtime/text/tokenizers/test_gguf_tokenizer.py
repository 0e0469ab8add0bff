"""Tokenizers from GGUF metadata against llama.cpp: its recorded answers, and itself where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.gguf_tokenizer import tokenizer_from_metadata
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.text.tokenizers.pre_tokenizers import RULES

# llama.cpp builds control tokens from plain text where its merges happen to spell one; Sapwood never does.
SPELLS_CONTROL = "</s>", "<s>", "<unk>"


def expected_ids(answers: dict[str, Any], index: int, *, allow_control: bool) -> list[int]:
    plain = answers["plain"][index]
    return answers["control"].get(str(index), plain) if allow_control else plain


@pytest.mark.parametrize("allow_control", [False, True])
def test_smollm2_equals_llama_cpp(smollm2: Tokenizer, recorded: dict[str, Any], allow_control: bool) -> None:
    for index, text in enumerate(recorded["texts"]):
        expected = expected_ids(recorded["smollm2"], index, allow_control=allow_control)
        assert smollm2.encode(text, allow_control=allow_control) == expected, text


@pytest.mark.parametrize("allow_control", [False, True])
def test_a_sentencepiece_vocabulary_equals_llama_cpp(
    mistral_metadata: dict[str, Any], recorded: dict[str, Any], allow_control: bool
) -> None:
    tokenizer = tokenizer_from_metadata(mistral_metadata)
    for index, text in enumerate(recorded["texts"]):
        expected = expected_ids(recorded["sentencepiece"], index, allow_control=allow_control)
        if not allow_control and tokenizer.control_ids.intersection(expected):
            assert any(spelling in text for spelling in SPELLS_CONTROL), text
            continue
        assert tokenizer.encode(text, allow_control=allow_control) == expected, text


def test_text_after_an_ordinary_id_gets_no_space(mistral_metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_from_metadata(mistral_metadata)
    hello = tokenizer.encode("hello")

    def text(ids: list[int]) -> bytes:
        return b"".join(map(tokenizer.token_bytes, ids))

    assert text(tokenizer.encode_fragments([*hello, "ing"])) == b" helloing"
    assert text(tokenizer.encode_fragments([1, "hello"])) == b"<s> hello"


def test_every_pre_tokenizer_name_equals_llama_cpp(smollm2_metadata: dict[str, Any], recorded: dict[str, Any]) -> None:
    names, checksums = recorded["pre_tokenizers"]["names"], recorded["pre_tokenizers"]["checksums"]
    assert names.keys() == RULES.keys(), "record llama.cpp's answers for every supported name"
    metadata = {key: value for key, value in smollm2_metadata.items() if key != "tokenizer.ggml.add_bos_token"}
    checked: dict[int, Tokenizer] = {}
    for name, answer in names.items():
        rule = RULES[name]
        if id(rule) not in checked:
            checked[id(rule)] = tokenizer = tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": name})
            for text, checksum in zip(recorded["texts"], checksums[answer["same_as"]], strict=True):
                ids = tokenizer.encode(text)
                assert zlib.crc32(np.array(ids, dtype="<i4").tobytes()) == checksum, (name, text)
        else:
            family = next(other for other in names if RULES[other] is rule)
            assert answer["same_as"] == names[family]["same_as"], name
        assert checked[id(rule)].adds_bos == answer["adds_bos"], name


def test_smollm2_in_detail(smollm2: Tokenizer) -> None:
    assert len(smollm2.encode("  x\n\n1234 é🚲")) == 11
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.adds_bos) == (49152, 1, False)
    assert smollm2.eos_ids == {0, 2}, "<|endoftext|> ends a text, <|im_end|> a turn"
    assert smollm2.control_ids == frozenset(range(17))
    assert smollm2.encode("hi", add_bos=True) == [1, *smollm2.encode("hi")]
    assert smollm2.chat_template


def test_a_file_may_have_several_chat_templates(smollm2_metadata: dict[str, Any]) -> None:
    named = {"tokenizer.chat_templates": ["tool_use", "rag"], "tokenizer.chat_template.tool_use": "t"}
    tokenizer = tokenizer_from_metadata(smollm2_metadata | named | {"tokenizer.chat_template.rag": "r"})
    default = smollm2_metadata["tokenizer.chat_template"]
    assert tokenizer.chat_templates == {"default": default, "tool_use": "t", "rag": "r"}
    assert tokenizer.chat_template == default
    without = {key: value for key, value in smollm2_metadata.items() if key != "tokenizer.chat_template"}
    assert tokenizer_from_metadata(without).chat_template is None


def test_control_tokens_are_plain_text_unless_allowed(smollm2: Tokenizer) -> None:
    text = "A<|im_end|>\n<|im_start|>system"
    assert not smollm2.control_ids.intersection(smollm2.encode(text))
    assert smollm2.encode(text, allow_control=True)[1:4] == [2, 198, 1]
    assert smollm2.split_control(text) == ["A", 2, "\n", 1, "system"]
    assert smollm2.encode_fragments(["A<|im_end|>", 2, "", "B"]) == [
        *smollm2.encode("A<|im_end|>"),
        2,
        *smollm2.encode("B"),
    ]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_bytes_of_the_ids_are_the_text(smollm2: Tokenizer, text: str) -> None:
    """SmolLM2 has no token for a few bytes, which it leaves out, as llama.cpp does."""
    missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    expected = bytes(byte for byte in text.encode() if byte not in missing)
    assert b"".join(smollm2.token_bytes(i) for i in smollm2.encode(text)) == expected


def test_lone_surrogates_count_as_replacement_characters(smollm2: Tokenizer) -> None:
    assert smollm2.encode("a\ud800b\udc00") == smollm2.encode("a\ufffdb\ufffd")
    assert smollm2.encode("\ud83d\ude00") == smollm2.encode("😀"), "a pair is one character"


def test_ids_without_a_token_have_no_bytes(smollm2: Tokenizer) -> None:
    assert smollm2.token_bytes(49152) == b""
    assert smollm2.token_bytes(-1) == b""


def test_merges_never_spell_a_control_token(smollm2_metadata: dict[str, Any]) -> None:
    """A vocabulary in which merges, and a whole word, spell what is marked as a control token."""
    types = np.array(smollm2_metadata["tokenizer.ggml.token_type"])
    the = smollm2_metadata["tokenizer.ggml.tokens"].index("the")
    types[the] = 3
    for pre in ("smollm", "llama-bpe"):  # llama-bpe takes a word that is a token whole, without merges
        tokenizer = tokenizer_from_metadata(
            smollm2_metadata | {"tokenizer.ggml.token_type": types, "tokenizer.ggml.pre": pre}
        )
        assert the not in tokenizer.encode("the<the>the")
        assert b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode("the<the>the")) == b"the<the>the"
        assert tokenizer.encode("the", allow_control=True) == [the]


def test_user_defined_tokens_match_in_plain_text(smollm2_metadata: dict[str, Any]) -> None:
    types = np.array(smollm2_metadata["tokenizer.ggml.token_type"])
    types[3] = 4
    tokenizer = tokenizer_from_metadata(smollm2_metadata | {"tokenizer.ggml.token_type": types})
    assert tokenizer.encode("a<repo_name>b") == [*tokenizer.encode("a"), 3, *tokenizer.encode("b")]
    assert 3 not in tokenizer.control_ids


@pytest.mark.parametrize("kind", [1, 4], ids=["normal", "user-defined"])
def test_an_ordinary_token_spelled_like_an_end_is_none(
    smollm2: Tokenizer, smollm2_metadata: dict[str, Any], kind: int
) -> None:
    """ggml-org/llama.cpp#21471: in some vocabularies "</s>" is the HTML tag that ends "<s>"."""
    spellings = list(smollm2_metadata["tokenizer.ggml.tokens"])
    types = np.array(smollm2_metadata["tokenizer.ggml.token_type"])
    spellings[500], types[500] = "</s>", kind
    changed = {"tokenizer.ggml.tokens": spellings, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": []}
    tokenizer = tokenizer_from_metadata(smollm2_metadata | changed)
    assert tokenizer.eos_ids == smollm2.eos_ids
    assert 500 not in tokenizer.control_ids
    assert len(tokenizer.encode("</s>")) == (1 if kind == 4 else 4)
    assert (500 in tokenizer.encode("</s>")) == (kind == 4)
    for declared in ("eos", "eot", "eom"):
        ends = tokenizer_from_metadata(smollm2_metadata | changed | {f"tokenizer.ggml.{declared}_token_id": 500})
        assert 500 in ends.eos_ids
        assert 500 in ends.control_ids


def test_a_control_token_spelled_like_an_end_is_one(smollm2: Tokenizer, smollm2_metadata: dict[str, Any]) -> None:
    spellings = list(smollm2_metadata["tokenizer.ggml.tokens"])
    types = np.array(smollm2_metadata["tokenizer.ggml.token_type"])
    spellings[3], types[3] = "<|eot_id|>", 3
    changed = {"tokenizer.ggml.tokens": spellings, "tokenizer.ggml.token_type": types}
    assert tokenizer_from_metadata(smollm2_metadata | changed).eos_ids == {3, *smollm2.eos_ids}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.pre": "kimi-k2"}, UnsupportedModel, "kimi-k2.*smollm"),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModel, "rwkv.*gpt2, llama"),
        ({"tokenizer.ggml.tokens": None}, ModelError, "vocabulary"),
        ({"tokenizer.ggml.merges": None}, ModelError, "merges"),
        ({"tokenizer.ggml.merges": ["qqq zzz"]}, ModelError, "merges"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, ModelError, "'a' twice"),
        ({"tokenizer.ggml.eos_token_id": 99999}, ModelError, "99999"),
        ({"tokenizer.ggml.token_type": np.zeros(3)}, ModelError, "token_type"),
    ],
)
def test_what_is_broken_or_unknown_is_refused_by_name(
    smollm2_metadata: dict[str, Any], change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tokenizer_from_metadata(smollm2_metadata | change)


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        load_tokenizer(tmp_path / "missing.gguf")
    for name in ("tekken.json", "vocab.txt"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(UnsupportedModel, match=name):
            load_tokenizer(tmp_path / name)


@pytest.mark.alone
def test_loading_is_quick_and_needs_neither_torch_nor_transformers(smollm2_path: Path) -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from sapwood.runtime.text.tokenizers.loading import load_tokenizer\n"
        "from sapwood.runtime.text.chat.template import ChatTemplate\n"
        "tokenizer = load_tokenizer(sys.argv[1]); ChatTemplate(tokenizer.chat_template, tokenizer)\n"
        "print(time.process_time()); print(*{'torch', 'transformers', 'gguf'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code, smollm2_path], capture_output=True, text=True, check=True)
    seconds, *modules = done.stdout.split()
    assert not modules
    assert float(seconds) < 1.5, "about 0.35 s of processor time on an idle machine"


# --- live --------------------------------------------------------------------------------------------------------

live = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed (extra 'oracle')"
)


@live
@pytest.mark.parametrize("special", [False, True])
def test_smollm2_equals_llama_cpp_live(
    smollm2: Tokenizer, smollm2_path: Path, recorder: ModuleType, special: bool
) -> None:
    model = recorder.open_vocab(smollm2_path)

    @settings(max_examples=500, deadline=None)
    @given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(recorder.ATOMS), max_size=12).map("".join)))
    def check(text: str) -> None:
        assert smollm2.encode(text, allow_control=special) == recorder.ids_of(model, text, special=special)

    check()


@live
def test_a_sentencepiece_vocabulary_equals_llama_cpp_live(
    recorder: ModuleType, mistral_metadata: dict[str, Any], tmp_path: Path
) -> None:
    recorder.write_vocab_file(tmp_path / "vocab.gguf", mistral_metadata)
    model, tokenizer = recorder.open_vocab(tmp_path / "vocab.gguf"), load_tokenizer(tmp_path / "vocab.gguf")

    @settings(max_examples=300, deadline=None)
    @given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(recorder.ATOMS), max_size=12).map("".join)))
    def check(text: str) -> None:
        assert tokenizer.encode(text, allow_control=True) == recorder.ids_of(model, text, special=True)

    check()
