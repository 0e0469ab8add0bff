"""What a model's files recommend, as its makers meant it; and nothing that makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime.model.read_config import config_from_hf
from sapwood.runtime.sampling.recommendation import (
    FALLBACK,
    OPENAI_DEFAULTS,
    SamplingDefaults,
    of_generation_config,
    of_gguf,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Qwen3's, Llama 3.1's and DeepSeek R1's own files
        (
            {"do_sample": True, "eos_token_id": [1], "temperature": 0.6, "top_k": 20, "top_p": 0.95},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        (
            {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0},
            {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
        ),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"top_p": 0.8}, {"top_p": 0.8}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": None, "top_p": 0.5, "top_k": 0}, {"top_p": 0.5}),
        ({"temperature": "0.3", "top_p": 7, "top_k": True, "min_p": 0.1}, {"min_p": 0.1}),
        ({"temperature": float("nan"), "top_k": 40.0}, {"top_k": 40}),
        ({"repetition_penalty": 1.2}, {**FALLBACK.values(), "repetition_penalty": 1.2}),
    ],
)
def test_a_generation_config(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert of_generation_config(config) == SamplingDefaults("generation_config.json", **expected)


@pytest.mark.parametrize("config", [{}, {"eos_token_id": 2, "do_sample": True}, {"temperature": -1}, {"top_p": []}])
def test_one_that_recommends_nothing(config: dict[str, Any]) -> None:
    assert of_generation_config(config) is None


def test_gguf_metadata() -> None:
    data = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    assert of_gguf({"general.name": "x", **data}) == SamplingDefaults(
        "general.sampling", temperature=0.6, top_k=20, repetition_penalty=1.1
    )
    more = {"general.sampling.min_p": 0.05, "general.sampling.top_p": 0.9, "general.sampling.mirostat": 0}
    assert of_gguf(more) == SamplingDefaults("general.sampling", top_p=0.9, min_p=0.05)
    assert of_gguf({"general.name": "x", "general.temperature": 0.6}) is None


def test_the_file_beside_a_model_is_read_and_a_broken_one_is_no_reason_to_refuse_it(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert config_from_hf(tmp_path).recommended is None
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25}')
    assert config_from_hf(tmp_path).recommended == SamplingDefaults("generation_config.json", temperature=0.25)
    for broken in ("{", "[]", "\udcff"):
        (tmp_path / "generation_config.json").write_bytes(broken.encode("utf-8", "surrogateescape"))
        assert config_from_hf(tmp_path).recommended is None


def test_they_are_shown_as_what_changes_something() -> None:
    assert str(FALLBACK) == "temperature 0.7, top_p 0.95, min_p 0.05"
    assert str(OPENAI_DEFAULTS) == "temperature 1"
