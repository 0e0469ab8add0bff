"""What the JSON files beside a Hugging Face tokenizer say: special tokens, end-of-turn ids, chat templates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True)
class AddedSpec:
    """A token that tokenizer_config.json adds to the vocabulary, or marks as special."""

    content: str
    token_id: int | None = None
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class TokenizerConfig:
    """tokenizer_config.json, generation_config.json and config.json, as far as text needs them.

    adds_bos, legacy and add_prefix_space are for SentencePiece models; a tokenizer.json says such things itself.
    """

    named_tokens: dict[str, str]
    added: list[AddedSpec]
    generation_eos: frozenset[int]
    chat_templates: dict[str, str]
    tokenizer_class: str | None
    adds_bos: bool
    legacy: bool
    add_prefix_space: bool


def read_config(directory: Path) -> TokenizerConfig:
    """Reads what is there; a missing file says nothing. Raises ModelError for a file that is not a JSON object."""
    config = _read(directory / "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder", {})
    added = {int(token_id): _added(entry, int(token_id)) for token_id, entry in decoder.items()}
    extra = [*config.get("additional_special_tokens", []), *_extra(config.get("extra_special_tokens", []))]
    named = {name: _text(config[name]) for name in NAMED_TOKENS if config.get(name)}
    known = {spec.content for spec in added.values()}
    specials = [_added(entry, None) for entry in [*(config[name] for name in named), *extra]]
    return TokenizerConfig(
        named_tokens=named,
        added=[*added.values(), *(spec for spec in specials if spec.content not in known)],
        generation_eos=_eos_ids(directory),
        chat_templates=_chat_templates(directory, config),
        tokenizer_class=config.get("tokenizer_class"),
        adds_bos=bool(config.get("add_bos_token")),
        legacy=bool(config.get("legacy")),
        add_prefix_space=config.get("add_prefix_space") is not False,
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return content


def _text(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else entry["content"]


def _added(entry: str | dict[str, Any], token_id: int | None) -> AddedSpec:
    if isinstance(entry, str):
        return AddedSpec(entry, token_id)
    return AddedSpec(entry["content"], token_id, **{name: bool(entry[name]) for name in _FLAGS if name in entry})


def _extra(entry: list[Any] | dict[str, Any]) -> list[Any]:
    return list(entry.values()) if isinstance(entry, dict) else entry


def _eos_ids(directory: Path) -> frozenset[int]:
    """The ids that generation ends at: generation_config.json's, or else the model config's."""
    for name in ("generation_config.json", "config.json"):
        ids = _read(directory / name).get("eos_token_id")
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name: chat_template.jinja and additional_chat_templates/*.jinja, or else what tokenizer_config.json has.

    As with transformers, files make those in tokenizer_config.json void; but where no file has the default, its own is.
    """
    said = config.get("chat_template")
    if isinstance(said, list):
        entries = [each for each in said if isinstance(each, dict)]
        listed = {str(each.get("name")): each.get("template") for each in entries}
    else:
        listed = {"default": said}
    listed = {name: text for name, text in listed.items() if isinstance(text, str)}
    files = {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    if not files:
        return listed
    default = {name: text for name, text in listed.items() if name == "default"}
    return {**default, **{name: file.read_text(encoding="utf-8") for name, file in files.items()}}
