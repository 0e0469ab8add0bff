"""Vocabularies that the tests of constrained/ share, and constraints compiled for them without the compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from llguidance import LLMatcher

from sapwood.constrained.spec import Compiled
from sapwood.constrained.vocabulary import Vocabulary, vocabulary_of
from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.loading import load_tokenizer

ENDLESS: dict[str, Any] = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/n"}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    """Byte-level BPE."""
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def mistral_tokenizer() -> Tokenizer:
    """SentencePiece, with 771 control tokens."""
    data = Path(mistral_common.__file__).parent / "data"
    return load_tokenizer(data / "mistral_instruct_tokenizer_240323.model.v3")


@pytest.fixture(scope="session")
def smollm2(smollm2_tokenizer: Tokenizer) -> Vocabulary:
    return vocabulary_of(smollm2_tokenizer)


@pytest.fixture(scope="session")
def mistral(mistral_tokenizer: Tokenizer) -> Vocabulary:
    return vocabulary_of(mistral_tokenizer)


@pytest.fixture(scope="session")
def toy() -> Vocabulary:
    """Every byte but "z", some pairs of letters, two end tokens and two control tokens: 263 ids, no multiple of 32."""
    token_bytes = [bytes([byte]) for byte in range(256)] + [b"ab", b"bc", b"abc", b"<s>", b"", b"", b""]
    token_bytes[ord("z")] = b""

    def encode(text: str) -> list[int]:
        return list(text.encode("utf-8"))

    return Vocabulary(token_bytes, eos_ids=[262, 260], control_ids=[259, 261, 262], encode=encode)


@pytest.fixture(params=["smollm2", "mistral"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return request.getfixturevalue(request.param)


def llguidance_schema(schema: Any) -> Compiled:
    overrides: Any = {"whitespace_flexible": False}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides)
    return Compiled(key="", engine="llguidance", payload=grammar.encode())


def llguidance_regex(pattern: str) -> Compiled:
    return Compiled(key="", engine="llguidance", payload=LLMatcher.grammar_from_regex(pattern).encode())


class Compilers:
    """Constraints for one engine and one vocabulary."""

    def __init__(self, engine: str, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._xgrammar: Any = None
        if engine == "xgrammar":
            import xgrammar

            self._xgrammar = xgrammar.GrammarCompiler(vocabulary.xgrammar_info, max_threads=1)

    def schema(self, schema: Any) -> Compiled:
        if self._xgrammar is None:
            return llguidance_schema(schema)
        text = json.dumps(schema)
        return self._compiled(self._xgrammar.compile_json_schema(text, any_whitespace=False, separators=(",", ":")))

    def regex(self, pattern: str) -> Compiled:
        return (
            llguidance_regex(pattern)
            if self._xgrammar is None
            else self._compiled(self._xgrammar.compile_regex(pattern))
        )

    def _compiled(self, grammar: Any) -> Compiled:
        return Compiled(key="", engine="xgrammar", payload=grammar.serialize_json().encode())


@pytest.fixture(scope="session", params=["llguidance", "xgrammar"])
def compilers(request: pytest.FixtureRequest, smollm2: Vocabulary) -> Compilers:
    return Compilers(request.param, smollm2)
