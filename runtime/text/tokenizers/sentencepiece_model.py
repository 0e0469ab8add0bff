"""The tokenizer of a SentencePiece .model file, run by the `sentencepiece` library; ids equal transformers'.

transformers treats such a file in one of two ways, by the `tokenizer_class` of tokenizer_config.json: without one, just
as the library itself does; as a LlamaTokenizer, with merges ranked by piece id in place of the score, without
normalization, and with its own rule for the space that is put before a text.
"""

from __future__ import annotations

import re
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from ...errors import ModelError, UnsupportedModel
from . import token_bytes
from .base import Fragment, Tokenizer
from .hf_config import AddedSpec, read_config
from .sentencepiece_proto import encode_model, load_processor

_LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
_PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")


def _ranked_by_id(processor: SentencePieceProcessor) -> SentencePieceProcessor:
    pieces = range(processor.GetPieceSize())
    kinds = {3: processor.IsControl, 2: processor.IsUnknown, 6: processor.IsByte}
    types = [next((kind for kind, holds in kinds.items() if holds(i)), 1) for i in pieces]
    return load_processor(encode_model([processor.IdToPiece(i) for i in pieces], [-float(i) for i in pieces], types))


class SentencePieceModel(Tokenizer):
    """One .model file, with what tokenizer_config.json in `directory` adds to it."""

    def __init__(self, path: Path, directory: Path) -> None:
        """Raises UnsupportedModel for a file or a tokenizer class that is not implemented."""
        config = read_config(directory)
        if config.tokenizer_class not in (*_LLAMA_CLASSES, *_PLAIN_CLASSES):
            raise UnsupportedModel(
                f"tokenizer_class {config.tokenizer_class!r} is not supported for a SentencePiece model;"
                f" supported are {', '.join(_LLAMA_CLASSES)}, or none"
            )
        self._is_llama = config.tokenizer_class in _LLAMA_CLASSES
        self._processor = load_processor(path.read_bytes())
        if self._is_llama:
            self._processor = _ranked_by_id(self._processor)
        pieces = range(self._processor.GetPieceSize())
        self._spellings: dict[int, str] = {i: self._processor.IdToPiece(i) for i in pieces}
        control = {i for i in pieces if self._processor.IsControl(i) or self._processor.IsUnknown(i)}
        control |= {self._add(spec, len(pieces)) for spec in config.added}
        self.vocab_size = max(self._spellings) + 1
        self.control_ids = frozenset(control)
        self._ids = {self._spellings[i]: i for i in control}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Where text gets a space put before it by the LlamaTokenizer; otherwise the library does so for every run.
        self._space_at_start = config.add_prefix_space
        self._space_after_control = config.add_prefix_space and config.legacy
        self.named_tokens = self._own_named_tokens() | config.named_tokens
        self.chat_templates = config.chat_templates
        self.bos_id = self._ids.get(self.named_tokens.get("bos_token", ""))
        eos_id = self._ids.get(self.named_tokens.get("eos_token", ""))
        ends = config.generation_eos | ({eos_id} if eos_id is not None else set())
        self.eos_ids = frozenset(token_id for token_id in ends if token_id < self.vocab_size)
        self.adds_bos = self.bos_id is not None and config.adds_bos

    def _add(self, spec: AddedSpec, pieces: int) -> int:
        """Takes a configured token into the vocabulary and gives its id; what is a piece already keeps its id."""
        if not spec.special or spec.lstrip or spec.rstrip or spec.single_word:
            raise UnsupportedModel(
                f"the added token {spec.content!r} is not special, or strips the text around it, which is not"
                " supported for a SentencePiece model; only plain special tokens are"
            )
        token_id = self._processor.PieceToId(spec.content)
        if self._processor.IdToPiece(token_id) != spec.content:
            token_id = max(self._spellings) + 1 if spec.token_id is None else spec.token_id
            if token_id < pieces:
                raise ModelError(f"tokenizer_config.json gives {spec.content!r} the id of another piece, {token_id}")
        elif spec.token_id not in (None, token_id):
            raise ModelError(f"tokenizer_config.json gives {spec.content!r} the id {spec.token_id}, not {token_id}")
        self._spellings[token_id] = spec.content
        return token_id

    def _own_named_tokens(self) -> dict[str, str]:
        own = {"bos_token": self._processor.bos_id(), "eos_token": self._processor.eos_id()}
        own["unk_token"] = self._processor.unk_id()
        return {name: self._spellings[token_id] for name, token_id in own.items() if token_id >= 0}

    def token_bytes(self, token_id: int) -> bytes:
        spelling = self._spellings.get(token_id)
        if spelling is None:
            return b""
        return spelling.encode("utf-8") if token_id in self.control_ids else token_bytes.sentencepiece(spelling)

    def split_control(self, text: str) -> list[Fragment]:
        fragments: list[Fragment] = []
        position = 0
        for match in self._control.finditer(text):
            fragments += [text[position : match.start()], self._ids[match[0]]]
            position = match.end()
        return [fragment for fragment in [*fragments, text[position:]] if fragment != ""]

    def _encode(self, text: str, allow_control: bool) -> list[int]:
        fragments: list[Fragment] = [text] if text else []
        return self._encode_fragments(self.split_control(text) if allow_control else fragments)

    def _encode_fragments(self, fragments: list[Fragment]) -> list[int]:
        ids: list[int] = []
        for index, fragment in enumerate(fragments):
            if isinstance(fragment, int):
                ids.append(fragment)
                continue
            wanted = self._space_at_start if index == 0 else self._space_after_control
            if self._is_llama and wanted and not fragment.startswith((" ", token_bytes.SPACE)):
                fragment = " " + fragment
            ids += self._processor.EncodeAsIds(fragment)
        return ids
