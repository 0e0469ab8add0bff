"""The vocabulary and special tokens that a GGUF file's metadata describes, read and checked; nothing is encoded here.

Types, defaults and the tokens that are known by their text follow llama.cpp, whose ids are the reference for GGUF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from .base import Fragment

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Tokens that end a turn in some family; converters do not always say which of the control tokens do. One of another
# type that is spelled like that is an ordinary token: "</s>" is an HTML tag in some vocabularies.
_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip

_NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}


@dataclass(frozen=True)
class GGUFVocab:
    """What the metadata says, checked: every id is inside the vocabulary and every spelling is unique.

    specials: (text, id) of the tokens that are cut out of a text before it is tokenized, longest text first.
    control: those that are cut out only where control tokens are allowed (types CONTROL and UNKNOWN).
    adds_bos: None where the file does not say.
    """

    spellings: list[str]
    types: list[int]
    scores: list[float]
    specials: list[tuple[str, int]]
    control: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None
    unknown_id: int | None
    adds_bos: bool | None
    named_tokens: dict[str, str]
    chat_templates: dict[str, str]

    def split(self, text: str, allow_control: bool) -> list[Fragment]:
        """`text` cut at special tokens: each token in turn, longest first, in what the ones before it left."""
        fragments: list[Fragment] = [text] if text else []
        for spelling, token_id in self.specials:
            if spelling in text and (allow_control or token_id not in self.control):
                fragments = [piece for fragment in fragments for piece in _cut(fragment, spelling, token_id)]
        return fragments


def _cut(fragment: Fragment, spelling: str, token_id: int) -> list[Fragment]:
    if isinstance(fragment, int) or spelling not in fragment:
        return [fragment]
    pieces: list[Fragment] = []
    for text in fragment.split(spelling):
        pieces += [token_id, text] if text else [token_id]
    return pieces[1:]


def read_vocab(metadata: dict[str, Any]) -> GGUFVocab:
    """Reads the "tokenizer.*" keys. Raises ModelError where they are missing or contradict each other."""
    spellings: list[str] | None = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(spellings, list) or not spellings:
        raise ModelError("the GGUF file has no vocabulary (tokenizer.ggml.tokens)")
    size = len(spellings)
    ids = {spelling: token_id for token_id, spelling in enumerate(spellings)}
    if len(ids) != size:
        twice = next(spelling for token_id, spelling in enumerate(spellings) if ids[spelling] != token_id)
        raise ModelError(f"the GGUF vocabulary has the token {twice!r} twice")
    types = [int(kind) for kind in _column(metadata, "token_type", size, NORMAL)]
    named = {name: _special_id(metadata, f"tokenizer.ggml.{name}_token_id", size) for name in (*_NAMED, "eot", "eom")}
    declared = {token_id for name in ("eos", "eot", "eom") if (token_id := named[name]) is not None}
    spelled = {ids[spelling] for spelling in _END_OF_TURN if spelling in ids}
    are_typed = metadata.get("tokenizer.ggml.token_type") is not None
    ends = {i for i in spelled if i in declared or types[i] == CONTROL or not are_typed}
    if {"<|return|>", "<|call|>", "<|end|>"} <= ids.keys():
        ends.discard(ids["<|end|>"])  # in this family it ends a message, not the turn
    for token_id in ends:
        types[token_id] = CONTROL
    control = frozenset(token_id for token_id, kind in enumerate(types) if kind in (CONTROL, UNKNOWN))
    specials = [(spellings[i], i) for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN, USER_DEFINED)]
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token")
    return GGUFVocab(
        spellings=spellings,
        types=types,
        scores=[float(score) for score in _column(metadata, "scores", size, 0.0)],
        specials=sorted(((text, i) for text, i in specials if text), key=lambda special: -len(special[0].encode())),
        control=control,
        eos_ids=frozenset(ends | declared),
        bos_id=named["bos"],
        unknown_id=named["unknown"],
        adds_bos=None if adds_bos is None else bool(adds_bos),
        named_tokens={
            f"{_NAMED[name]}_token": spellings[i] for name, i in named.items() if name in _NAMED and i is not None
        },
        chat_templates=_chat_templates(metadata),
    )


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    """By name: "tokenizer.chat_template" is the default, "tokenizer.chat_template.NAME" another."""
    key = "tokenizer.chat_template"
    named = {name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")}
    default = {"default": metadata[key]} if key in metadata else {}
    return {name: text for name, text in {**named, **default}.items() if isinstance(text, str)}


def _column(metadata: dict[str, Any], name: str, size: int, default: float) -> Sequence[float]:
    """One value per token; `default` for all where the file has no such array."""
    column = metadata.get(f"tokenizer.ggml.{name}")
    if column is None:
        return [default] * size
    if len(column) != size:
        raise ModelError(f"the GGUF file has {size} tokens but {len(column)} entries in tokenizer.ggml.{name}")
    return column.tolist() if hasattr(column, "tolist") else column


def _special_id(metadata: dict[str, Any], key: str, size: int) -> int | None:
    token_id = metadata.get(key)
    if token_id is None:
        return None
    if not 0 <= int(token_id) < size:
        raise ModelError(f"{key} is {token_id}, but the vocabulary has {size} tokens")
    return int(token_id)
