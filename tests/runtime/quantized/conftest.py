"""Tiny models that are saved quantized."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the modules that are no tests are this folder's own

from packers import FORMATS, Format, write


@pytest.fixture(scope="session")
def make_model(one_thread: None) -> Callable[..., Any]:
    """A random llama or qwen2 of two layers: 4 heads of 32 over 2, a width of 128."""

    def make(family: str = "llama", **sizes: Any) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(2)
        options = {
            "vocab_size": 96,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.15,
            "tie_word_embeddings": False,
            **sizes,
        }
        if family == "qwen2":
            model: Any = Qwen2ForCausalLM(Qwen2Config(**options))
            for layer in model.model.layers:
                torch.nn.init.normal_(layer.self_attn.k_proj.bias, std=0.3)
            return model.eval()
        return LlamaForCausalLM(LlamaConfig(**options)).eval()

    return make


@pytest.fixture(scope="session")
def saved(make_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """A directory in one of FORMATS, and the transformers model with the weights that it stands for."""
    made: dict[tuple[str, str], tuple[Path, Any]] = {}

    def save(name: str, family: str = "llama") -> tuple[Path, Any]:
        if (name, family) not in made:
            form: Format = FORMATS[name]
            model = make_model(family, **form.sizes)
            made[name, family] = write(model, tmp_path_factory.mktemp("quantized"), form), model
        return made[name, family]

    return save


@pytest.fixture(scope="session")
def expected_logprobs() -> Callable[[Any, list[int]], np.ndarray]:
    """A transformers model's log-probabilities of the ids after the first."""

    def score(model: Any, ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1).numpy()
        return logprobs[np.arange(len(ids) - 1), ids[1:]]

    return score
