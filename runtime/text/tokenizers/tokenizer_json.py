"""The tokenizer that a tokenizer.json describes, run by the `tokenizers` library; ids equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from ...errors import ModelError, UnsupportedModel
from . import token_bytes
from .base import Fragment, Tokenizer
from .hf_config import AddedSpec, read_config

_DECODERS = {"ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}


class TokenizerJson(Tokenizer):
    """One tokenizer.json, with the special tokens that the files in `directory` add or name."""

    def __init__(self, path: Path, directory: Path) -> None:
        """Raises ModelError for a file that the library cannot read, UnsupportedModel for a decoder without bytes."""
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"cannot read {path}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = read_config(directory)
        _add_tokens(tokenizer, config.added)
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._byte_level, self._byte_fallback = _spelling(tokenizer, path.name)
        self._continuing = _without_prefix(tokenizer)
        self._spellings = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
        self.vocab_size = max(self._spellings, default=-1) + 1
        self.control_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        self.named_tokens = config.named_tokens
        self.chat_templates = config.chat_templates
        eos_id = self._named_id("eos_token")
        ends = config.generation_eos | ({eos_id} if eos_id is not None else set())
        self.eos_ids = frozenset(token_id for token_id in ends if token_id < self.vocab_size)
        added = tokenizer.encode("").ids  # what the post-processor, which alone decides this, adds to every text
        self.bos_id = self._named_id("bos_token")
        if self.bos_id is None and added and added[0] in self.control_ids:
            self.bos_id = added[0]
        self.adds_bos = self.bos_id is not None and added[:1] == [self.bos_id]
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._unknown_ids = {self._named_id("unk_token"), unknown and tokenizer.token_to_id(unknown)}

    def _named_id(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    def token_bytes(self, token_id: int) -> bytes:
        spelling = self._spellings.get(token_id)
        if spelling is None:
            return b""
        if self._byte_level:
            return spelling.encode("utf-8") if token_id in self._added else token_bytes.byte_level(spelling)
        if token_id in self.control_ids or not self._byte_fallback:
            return spelling.replace(token_bytes.SPACE, " ").encode("utf-8")
        return token_bytes.sentencepiece(spelling)

    def split_control(self, text: str) -> list[Fragment]:
        self._tokenizer.encode_special_tokens = False
        return self._fragments(text, self._tokenizer.encode(text, add_special_tokens=False))

    def _fragments(self, text: str, encoding: tokenizers.Encoding) -> list[Fragment]:
        """The text between the control tokens of its own encoding; offsets are in characters."""
        fragments: list[Fragment] = []
        position = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets):
            if token_id in self.control_ids and text[start:end].strip() == self._spellings[token_id].strip():
                fragments += [text[position:start], token_id] if start > position else [token_id]
                position = end
        return [*fragments, text[position:]] if position < len(text) else fragments

    def _encode(self, text: str, allow_control: bool) -> list[int]:
        self._tokenizer.encode_special_tokens = not allow_control
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if allow_control else self._spelled_out(text, ids)

    def _spelled_out(self, text: str, ids: list[int]) -> list[int]:
        """`ids`, with every control token that merges built out of plain text replaced by its characters' tokens."""
        built = {i for i in self.control_ids.intersection(ids) if self._spellings[i] in text} - self._unknown_ids
        if not built:
            return ids
        out: list[int] = []
        for token_id in ids:
            if token_id not in built:
                out.append(token_id)
                continue
            for char in self._spellings[token_id]:
                out += [
                    token.id for token in self._tokenizer.model.tokenize(char)
                ]  # the model alone, without added tokens
        return out

    def _encode_fragments(self, fragments: list[Fragment]) -> list[int]:
        # An id may have no token: models often have more embeddings than their tokenizer has tokens.
        text = "".join(self._spellings.get(f, "") if isinstance(f, int) else f for f in fragments)
        self._tokenizer.encode_special_tokens = False
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if self._fragments(text, encoding) == fragments:
            return encoding.ids
        ids: list[int] = []
        for index, fragment in enumerate(fragments):
            ids += [fragment] if isinstance(fragment, int) else self._encode_part(fragment, is_start=index == 0)
        return ids

    def _encode_part(self, text: str, is_start: bool) -> list[int]:
        """A part of a larger text; where only the start of a text gets a space put before it, other parts get none."""
        if is_start or self._continuing is None:
            return self._encode(text, allow_control=False)
        starting = self._tokenizer.pre_tokenizer
        self._tokenizer.pre_tokenizer = self._continuing
        try:
            return self._encode(text, allow_control=False)
        finally:
            self._tokenizer.pre_tokenizer = starting


def _add_tokens(tokenizer: tokenizers.Tokenizer, specs: list[AddedSpec]) -> None:
    """Adds the configured tokens that tokenizer.json lacks, and marks as special those that are special."""
    present = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for spec in sorted(specs, key=lambda spec: (spec.token_id is None, spec.token_id or 0)):
        known = present.get(spec.content)
        if known is not None and (known.special or not spec.special):
            continue
        token = tokenizers.AddedToken(
            spec.content,
            single_word=spec.single_word,
            lstrip=spec.lstrip,
            rstrip=spec.rstrip,
            normalized=spec.normalized,
            special=spec.special,
        )
        if spec.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
        added_id = tokenizer.token_to_id(spec.content)
        if spec.token_id is not None and added_id != spec.token_id:
            raise ModelError(
                f"tokenizer_config.json gives {spec.content!r} the id {spec.token_id}, but in tokenizer.json's"
                f" vocabulary it has {added_id}"
            )


def _state(part: Any) -> dict[str, Any]:
    return json.loads(part.__getstate__()) if part is not None else {}


def _spelling(tokenizer: tokenizers.Tokenizer, name: str) -> tuple[bool, bool]:
    """How tokens spell bytes, from the decoder: (byte-level alphabet, "<0x41>" for a byte)."""
    decoder = _state(tokenizer.decoder)
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type") for step in steps}
    unknown = kinds - _DECODERS
    if unknown:
        found = ", ".join(str(kind) for kind in sorted(unknown, key=str))
        raise UnsupportedModel(f"{name} has the decoder {found}; supported are {', '.join(sorted(_DECODERS))}")
    for step in steps:
        replaces = step.get("pattern", {"String": step.get("replacement", token_bytes.SPACE)}), step.get("content", " ")
        if replaces != ({"String": token_bytes.SPACE}, " "):
            raise UnsupportedModel(
                f'{name} has a decoder that replaces {replaces[0]}; supported is only "▁" by a space'
            )
    return "ByteLevel" in kinds, "ByteFallback" in kinds


def _without_prefix(tokenizer: tokenizers.Tokenizer) -> PreTokenizer | None:
    """The pre-tokenizer for text that goes on, where it differs from the one for text that starts; else None."""
    state = _state(tokenizer.pre_tokenizer)
    steps = state["pretokenizers"] if state.get("type") == "Sequence" else [state]
    first = [step for step in steps if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"]
    if not first:
        return None
    for step in first:
        step["prepend_scheme"] = "never"
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return tokenizers.Tokenizer.from_str(json.dumps(empty | {"pre_tokenizer": state})).pre_tokenizer
