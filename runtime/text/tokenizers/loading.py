"""The choice of a tokenizer's implementation by what a model's files are."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError, UnsupportedModel
from .base import Tokenizer


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a .gguf file, a Hugging Face directory, a tokenizer.json or a SentencePiece .model file.

    Raises ModelError for files that are missing or broken and UnsupportedModel, naming it, for what is not implemented.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError(f"no tokenizer at {path}: there is no such file or directory")
    directory = path if path.is_dir() else path.parent
    if path.is_dir():
        path = _file_in(path)
    if path.suffix == ".gguf":
        from ...weights.gguf import GGUFFile
        from .gguf_tokenizer import tokenizer_from_metadata

        return tokenizer_from_metadata(GGUFFile(path).metadata)
    if path.suffix == ".json" and not path.name.startswith("tekken"):
        from .tokenizer_json import TokenizerJson

        return TokenizerJson(path, directory)
    if ".model" in path.suffixes:
        from .sentencepiece_model import SentencePieceModel

        return SentencePieceModel(path, directory)
    raise UnsupportedModel(
        f"{path.name} is not a tokenizer file that is supported; .gguf, tokenizer.json and SentencePiece .model are"
    )


def _file_in(directory: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer.model"):
        if (directory / name).is_file():
            return directory / name
    raise ModelError(f"{directory} has neither a tokenizer.json nor a tokenizer.model")
