"""Tokenizers built from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece ("llama") vocabularies.

Their ids equal llama.cpp's, but for one thing, on purpose: whatever the merges, plain text yields no control token.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers.models import BPE

from ...errors import ModelError, UnsupportedModel
from . import pre_tokenizers, token_bytes
from .base import Fragment, Tokenizer
from .gguf_vocab import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, GGUFVocab, read_vocab
from .sentencepiece_proto import encode_model, load_processor


def tokenizer_from_metadata(metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes (as `weights.gguf.GGUFFile.metadata` gives it).

    Raises UnsupportedModel for a vocabulary or pre-tokenizer that is not implemented, ModelError for broken metadata.
    """
    model = metadata.get("tokenizer.ggml.model")
    kinds = {"gpt2": ByteLevelBPE, "llama": SentencePieceVocab}
    if model not in kinds:
        raise UnsupportedModel(f"unknown GGUF tokenizer model {model!r}; supported are {', '.join(sorted(kinds))}")
    return kinds[model](read_vocab(metadata), metadata)


class _GGUFTokenizer(Tokenizer):
    """What both kinds share: special tokens are cut out first, the rest is tokenized run by run."""

    def __init__(self, vocab: GGUFVocab, adds_bos: bool) -> None:
        self.vocab_size = len(vocab.spellings)
        self.eos_ids = vocab.eos_ids
        self.bos_id = vocab.bos_id
        self.adds_bos = vocab.bos_id is not None and (adds_bos if vocab.adds_bos is None else vocab.adds_bos)
        self.control_ids = vocab.control
        self.named_tokens = vocab.named_tokens
        self.chat_templates = vocab.chat_templates
        self._vocab = vocab

    def split_control(self, text: str) -> list[Fragment]:
        merged: list[Fragment] = []
        for fragment in self._vocab.split(text, allow_control=True):
            if isinstance(fragment, int) and fragment not in self.control_ids:
                fragment = self._vocab.spellings[fragment]
            if merged and isinstance(fragment, str) and isinstance(merged[-1], str):
                merged[-1] += fragment
            else:
                merged.append(fragment)
        return merged

    def _encode(self, text: str, allow_control: bool) -> list[int]:
        return self._encode_runs(self._vocab.split(text, allow_control))

    def _encode_fragments(self, fragments: list[Fragment]) -> list[int]:
        runs: list[Fragment] = []
        for fragment in fragments:
            runs += [fragment] if isinstance(fragment, int) else self._vocab.split(fragment, allow_control=False)
        return self._encode_runs(runs)

    def _encode_runs(self, runs: list[Fragment]) -> list[int]:
        raise NotImplementedError


class ByteLevelBPE(_GGUFTokenizer):
    """A byte-level BPE vocabulary with the pre-tokenizer that the file names."""

    def __init__(self, vocab: GGUFVocab, metadata: dict[str, Any]) -> None:
        rule = pre_tokenizers.find_rule(metadata.get("tokenizer.ggml.pre", "default"))
        super().__init__(vocab, rule.adds_bos)
        merges: list[str] | None = metadata.get("tokenizer.ggml.merges")
        if not isinstance(merges, list):
            raise ModelError("the GGUF file has no merges (tokenizer.ggml.merges)")
        self._tokenizer = tokenizers.Tokenizer(self._model(merges, rule.ignore_merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.build(rule)

    def _model(self, merges: list[str], ignore_merges: bool) -> BPE:
        """The merges over all tokens but the control tokens, which therefore cannot come out of any text.

        Bytes without a token get ids past the vocabulary, for the library would drop them before it merges and so join
        their neighbours.
        """
        control = {self._vocab.spellings[token_id] for token_id in self.control_ids}
        vocab = {text: token_id for token_id, text in enumerate(self._vocab.spellings) if text not in control}
        missing = [char for char in token_bytes.BYTE_OF_CHAR if char not in vocab]
        vocab |= {char: self.vocab_size + index for index, char in enumerate(missing)}
        pairs: dict[tuple[str, str], None] = {}
        for merge in merges:
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut > 0 and control.isdisjoint((left, right, left + right)):
                pairs[left, right] = None  # where a pair comes twice, its first rank counts
        try:
            return BPE(vocab=vocab, merges=list(pairs), ignore_merges=ignore_merges)
        except Exception as error:  # the library raises bare Exception for merges that fit no token
            raise ModelError(f"the GGUF file's merges do not fit its vocabulary: {error}") from error

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        spelling = self._vocab.spellings[token_id]
        if self._vocab.types[token_id] in (CONTROL, UNKNOWN, USER_DEFINED):
            return spelling.encode("utf-8")
        return token_bytes.byte_level(spelling)

    def _encode_runs(self, runs: list[Fragment]) -> list[int]:
        ids: list[int] = []
        for run in runs:
            ids += [run] if isinstance(run, int) else self._tokenizer.encode(run, add_special_tokens=False).ids
        return [token_id for token_id in ids if token_id < self.vocab_size]


class SentencePieceVocab(_GGUFTokenizer):
    """A SentencePiece vocabulary: pieces merged by score, bytes for what has no piece, a space before a text's start.

    As in llama.cpp, the space is added at the start and after every special token; after other ids none is.
    """

    def __init__(self, vocab: GGUFVocab, metadata: dict[str, Any]) -> None:
        super().__init__(vocab, adds_bos=True)
        self._special_ids = {token_id for _, token_id in vocab.specials}
        self._prefix = " " if metadata.get("tokenizer.ggml.add_space_prefix", True) else ""
        unknown_id = vocab.unknown_id if vocab.unknown_id is not None else 0
        self._processor = load_processor(encode_model(vocab.spellings, vocab.scores, _proto_types(vocab, unknown_id)))

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        spelling, kind = self._vocab.spellings[token_id], self._vocab.types[token_id]
        return token_bytes.sentencepiece(spelling) if kind in (NORMAL, UNUSED, BYTE) else spelling.encode("utf-8")

    def _encode_runs(self, runs: list[Fragment]) -> list[int]:
        ids: list[int] = []
        prefix = self._prefix
        for run in runs:
            if isinstance(run, int):
                ids.append(run)
                prefix = self._prefix if run in self._special_ids else ""
            else:
                ids += self._processor.EncodeAsIds(prefix + run)
                prefix = ""
        return ids


def _proto_types(vocab: GGUFVocab, unknown_id: int) -> list[int]:
    """Piece types for the library; it must not find special tokens, which are cut out of texts beforehand."""
    library = {NORMAL: NORMAL, UNUSED: NORMAL, BYTE: BYTE}
    types = [library.get(kind, CONTROL) for kind in vocab.types]
    types[unknown_id] = UNKNOWN
    return types
