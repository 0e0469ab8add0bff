"""Tokenizers that the tests of runtime/text share."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.weights.gguf import GGUFFile


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    return GGUFFile(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """llama.cpp's answers for a fixed corpus; see record_llama_cpp.py."""
    return json.loads(Path(__file__).with_name("llama_cpp_ids.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def recorder() -> ModuleType:
    """The script record_llama_cpp.py, as a module."""
    spec = importlib.util.spec_from_file_location("record_llama_cpp", Path(__file__).with_name("record_llama_cpp.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def mistral_model(recorder: ModuleType) -> Path:
    return recorder.mistral_model()


@pytest.fixture(scope="session")
def mistral_metadata(recorder: ModuleType, mistral_model: Path) -> dict[str, Any]:
    return recorder.sentencepiece_metadata(mistral_model)
