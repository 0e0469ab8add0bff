"""Engines for the end-to-end promises: books audited and freed slots poisoned after every step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood import Engine


@pytest.fixture(scope="session")
def test_modes() -> dict[str, Any]:
    """Engine options: the books are audited and freed slots poisoned after every step."""
    return {"audit": True, "poison_freed": True, "max_context": 1024}


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama whose tokens are bytes and whose choices are clear (logits far apart), so that rounding decides
    nothing."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=255,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module", params=["cpu", "torch"])
def modes(request: pytest.FixtureRequest, test_modes: dict[str, Any]) -> dict[str, Any]:
    """The test modes with each backend in turn."""
    return test_modes | {"attention_backend": request.param}


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, modes: dict[str, Any]) -> Iterator[Engine]:
    """The real model, with room for everything."""
    with Engine(smollm2_path, kv_tokens=8192, **modes) as engine:
        yield engine


@pytest.fixture(scope="module")
def cold_smollm2(smollm2_path: Path, modes: dict[str, Any]) -> Iterator[Engine]:
    """The real model without a prefix cache: every request is computed from its first token."""
    with Engine(smollm2_path, kv_tokens=4096, prefix_cache=False, **modes) as engine:
        yield engine


@pytest.fixture(scope="module")
def tolerance(modes: dict[str, Any]) -> float:
    """How far log-probabilities may lie apart: not at all with the kernels, by rounding with torch."""
    return 0.0 if modes["attention_backend"] == "cpu" else 1e-4
