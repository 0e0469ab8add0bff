"""tokenizer.json against transformers' AutoTokenizer, for the kinds of tokenizer that language models have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.text.chat.template import ChatTemplate
from sapwood.runtime.text.tokenizers import pre_tokenizers as rules
from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.loading import load_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ["the cat sat", "a  b\n\nc 123", "s> <s> </s> the", "héllo wörld 🚲", "<s>the</s>", "x=1; y=2"] * 3
SPECIALS = ["<s>", "</s>", "<unk>"]
ATOMS = [
    "<s>",
    "</s>",
    "<unk>",
    "<mark>",
    "<wide>",
    " ",
    "  ",
    "the",
    "cat",
    "s",
    "<s",
    "s>",
    "é",
    "🚲",
    "\n",
    "▁",
    "1",
    "23",
    "\t",
    "<",
    "a b",
]

Build = Callable[[dict[str, Any]], tokenizers.Tokenizer]


def byte_level(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """SmolLM2's own vocabulary."""
    spellings = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(spellings)}, merges=merges))
    tokenizer.pre_tokenizer = rules.build(rules.find_rule("smollm"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def metaspace(metadata: dict[str, Any], scheme: str = "first") -> tokenizers.Tokenizer:
    """A SentencePiece-like BPE whose merges can spell its own control tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for spelling in ("<s", "s>", "</", "</s", "<s>", "</s>"):
        vocab.setdefault(spelling, len(vocab))
    state["model"]["merges"] += [["<", "s"], ["s", ">"], ["<s", ">"], ["</", "s>"]]
    state["added_tokens"] = []
    state["decoder"] = json.loads(
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ).__getstate__()
    )
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def metaspace_always(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    return metaspace(metadata, "always")


def prepended(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """As Llama 2's tokenizer.json: a normalizer puts the space before every run of text."""
    tokenizer = metaspace(metadata)
    tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def unigram(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def adds_bos(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = byte_level(metadata)
    ids = [(text, tokenizer.token_to_id(text)) for text in SPECIALS[:1]]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=ids)
    tokenizer.add_tokens([AddedToken("<mark>", special=False, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<wide>", lstrip=True, rstrip=True, special=True)])
    return tokenizer


NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
STRIPPING = {"__type": "AddedToken", "content": "<wide>", "rstrip": True}
CASES: dict[str, tuple[Build, dict[str, Any]]] = {
    "byte level": (byte_level, NAMES),
    "byte level, BOS by the post-processor": (adds_bos, NAMES),
    "byte level, BOS only in the configuration, which does not count": (byte_level, NAMES | {"add_bos_token": True}),
    "byte level, tokens added by the configuration": (
        byte_level,
        NAMES
        | {
            "additional_special_tokens": ["<mark>"],
            "pad_token": {"__type": "AddedToken", "content": "<wide>", "rstrip": True},
        },
    ),
    "metaspace": (metaspace, NAMES),
    "metaspace, always": (metaspace_always, NAMES),
    "prepended": (prepended, NAMES),
    "unigram": (unigram, NAMES | {"unk_token": "<unk>"}),
}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, smollm2_metadata: dict[str, Any], tmp_path_factory: Any
) -> tuple[Any, Tokenizer]:
    """transformers' tokenizer and ours, from the same directory."""
    build, config = CASES[request.param]
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    build(smollm2_metadata).save(str(directory / "tokenizer.json"))
    config = config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.AutoTokenizer.from_pretrained(directory), load_tokenizer(directory)


STRINGS = st.one_of(st.lists(st.sampled_from(ATOMS), max_size=10).map("".join), st.text(max_size=20))


def test_ids_equal_transformers(pair: tuple[Any, Tokenizer]) -> None:
    reference, tokenizer = pair

    @settings(max_examples=200, deadline=None)
    @given(STRINGS)
    def check(text: str) -> None:
        expected = reference(text).input_ids
        assert tokenizer.encode(text, add_bos=tokenizer.adds_bos, allow_control=True) == expected
        plain = reference(text, add_special_tokens=False, split_special_tokens=True).input_ids
        ids = tokenizer.encode(text)
        built = tokenizer.control_ids.intersection(plain) - {reference.unk_token_id}
        assert ids == plain or built, "only where merges build a control token out of plain text may ids differ"
        assert not tokenizer.control_ids.intersection(ids) - {reference.unk_token_id}
        assert tokenizer.encode_fragments(tokenizer.split_control(text)) == tokenizer.encode(text, allow_control=True)

    check()


def test_bytes_of_the_ids_equal_transformers_text(pair: tuple[Any, Tokenizer]) -> None:
    reference, tokenizer = pair

    @settings(max_examples=100, deadline=None)
    @given(STRINGS)
    def check(text: str) -> None:
        ids = [i for i in tokenizer.encode(text) if i != reference.unk_token_id]
        shown = b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", "replace")
        assert shown.lstrip(" ") == reference.decode(ids, clean_up_tokenization_spaces=False).lstrip(" ")

    check()


def test_what_the_files_name_is_known(pair: tuple[Any, Tokenizer]) -> None:
    reference, tokenizer = pair
    assert tokenizer.bos_id == reference.bos_token_id
    assert tokenizer.eos_ids == {reference.eos_token_id}
    assert set(reference.all_special_ids) <= tokenizer.control_ids
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.named_tokens["bos_token"] == "<s>"


@pytest.mark.parametrize("build", [byte_level, metaspace, metaspace_always, prepended])
def test_text_between_control_tokens_keeps_its_ids(
    build: Build, smollm2_metadata: dict[str, Any], tmp_path: Path
) -> None:
    """A look-alike in one fragment leaves the ids of the others as they are."""
    build(smollm2_metadata).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    bos, eos = (tokenizer.encode(text, allow_control=True)[-1] for text in ("<s>", "</s>"))
    calm = tokenizer.encode("<s>the cat</s> the\n", allow_control=True)
    ids = tokenizer.encode_fragments([bos, "the cat", eos, " the\n", bos, "x<s>"])
    assert ids[: len(calm)] == calm
    assert ids.count(bos) == 2


def test_chat_template_and_end_ids_come_from_the_files(smollm2_metadata: dict[str, Any], tmp_path: Path) -> None:
    byte_level(smollm2_metadata).save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMES | {"chat_template": named}))
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    tokenizer = load_tokenizer(tmp_path)
    end = tokenizer.encode("</s>", allow_control=True)
    assert (tokenizer.chat_template, tokenizer.chat_templates) == ("a", {"default": "a", "tool_use": "b"})
    assert tokenizer.eos_ids == {5, *end}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids == {7, 8, *end}
    template = ChatTemplate(tokenizer.chat_template or "", tokenizer)
    fragments = template.render([{"role": "user", "content": "<s>x</s>"}])
    assert fragments == [tokenizer.bos_id, "<s>x</s>"]


@pytest.mark.parametrize(
    ("said", "files", "expected"),
    [
        (None, [], {}),
        ("a", [], {"default": "a"}),
        ([{"name": "rag", "template": "r"}], [], {"rag": "r"}),
        ("a", ["chat_template"], {"default": "chat_template"}),
        (None, ["chat_template", "additional_chat_templates/tool_use"], {"default": "chat_template", "tool_use": "x"}),
        # the files make those in the configuration void, as with transformers
        ([{"name": "rag", "template": "r"}], ["chat_template"], {"default": "chat_template"}),
        ("a", ["additional_chat_templates/tool_use"], {"default": "a", "tool_use": "x"}),
    ],
)
def test_there_may_be_several_chat_templates(
    smollm2_metadata: dict[str, Any], tmp_path: Path, said: Any, files: list[str], expected: dict[str, str]
) -> None:
    byte_level(smollm2_metadata).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMES | {"chat_template": said}))
    (tmp_path / "additional_chat_templates").mkdir()
    for name in files:
        (tmp_path / f"{name}.jinja").write_text(name if "/" not in name else "x")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.chat_templates == expected
    if "default" in expected:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path).get_chat_template(tools=[{}])
        assert theirs == expected.get("tool_use", expected["default"])


def test_a_decoder_that_does_not_give_bytes_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match=r"WordPiece.*ByteLevel"):
        load_tokenizer(tmp_path)
    tokenizer.decoder = decoders.Replace("_", " ")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match=r"replaces.*'_'"):
        load_tokenizer(tmp_path)


def test_broken_files_are_refused(smollm2_metadata: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    byte_level(smollm2_metadata).save(str(tmp_path / "tokenizer.json"))
    for text in ("[1]", "{", '{"added_tokens_decoder": {"3": {"content": "<new>"}}}'):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
            load_tokenizer(tmp_path)
