"""A checkpoint's configuration is understood in full, or refused by name; torch is not needed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.model.config import Rope
from sapwood.runtime.model.read_config import config_from_gguf, read_config

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "eos_token_id": [5, 6],
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
Read = Callable[..., Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads LLAMA with changes; a value of ... removes the key."""

    def write(**changes: Any) -> Any:
        data = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(data))
        return read_config(tmp_path)

    return write


def test_a_llama_config(read: Read) -> None:
    config = read()
    assert config.architecture == "llama"
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 16)
    assert config.rope == Rope(500000.0)
    assert config.tied_head
    assert config.eos_ids == (5, 6)


def test_what_may_be_left_out_has_the_value_that_transformers_gives_it(read: Read) -> None:
    config = read(
        num_key_value_heads=..., rope_theta=..., eos_token_id=None, tie_word_embeddings=..., architectures=...
    )
    assert config.kv_heads == 4
    assert config.rope.theta == 10000.0
    assert config.eos_ids == ()
    assert not config.tied_head


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        ({"rope_scaling": None}, Rope(500000.0)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, Rope(500000.0, "linear", 4.0)),
        ({"rope_scaling": LLAMA3}, Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": ...}, Rope(7.0)),
        (
            {"rope_parameters": {**LLAMA3, "rope_theta": 9.0}, "rope_theta": ...},
            Rope(9.0, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_rope_in_its_older_and_newer_spelling(read: Read, scaling: dict[str, Any], rope: Rope) -> None:
    assert read(**scaling).rope == rope


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model_type": "mamba"},
            "the architecture 'mamba' is not supported; supported are llama, mistral, qwen2, qwen3, gemma2, ",
        ),
        ({"model_type": ...}, "the architecture None is not supported"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForCausalLM' is"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; only 'silu' is"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"sliding_window": 4096}, r"sliding window attention \(4096\)"),
        ({"use_sliding_window": True, "sliding_window": 128}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": 3}, "layer_types"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantized by 'hqq'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "RoPE scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "RoPE scaling"),
        ({"rope_scaling": {**LLAMA3, "attention_factor": 2.0}}, "rope parameters attention_factor"),
        ({"rope_scaling": "linear"}, "rope parameters 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope parameters"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(read: Read, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": ...}, "config.json lacks 'hidden_size'"),
        ({"hidden_size": "64"}, "hidden_size is '64'; a positive integer is needed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide into 3"),
        ({"head_dim": 15}, "head dimension 15 is odd"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; a positive number"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "above low_freq_factor"),
        ({"eos_token_id": "</s>"}, "token ids are needed"),
        ({"eos_token_id": [-1]}, "token ids are needed"),
    ],
)
def test_nonsense_is_refused_by_name(read: Read, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        read(**changes)


FULL, SLIDING = "full_attention", "sliding_attention"
OTHERS: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 16,
        "tie_word_embeddings": ...,
    },
}


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("mistral", {}, (4096, 4096)),
        ("mistral", {"sliding_window": 7}, (7, 7)),
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": 7, "layer_types": [SLIDING, SLIDING]}, (7, 7)),
        ("qwen2", {}, ()),
        ("qwen2", {"sliding_window": 7}, ()),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0}, ()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7}, ()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, (0, 7)),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, (4096, 4096)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "layer_types": [SLIDING, FULL]}, (7, 0)),
        ("qwen2", {"layer_types": [FULL, FULL]}, ()),
        ("gemma2", {}, (4096, 0)),
        ("gemma2", {"sliding_window": 7, "layer_types": [FULL, SLIDING]}, (0, 7)),
        ("gemma2", {"sliding_window": None, "layer_types": [FULL, FULL]}, ()),
    ],
)
def test_windows_are_of_the_layers_that_transformers_gives_them(
    read: Read, family: str, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert read(**OTHERS[family] | changes).windows == windows


def test_a_gemma2_config(read: Read) -> None:
    config = read(**OTHERS["gemma2"], query_pre_attn_scalar=144)
    assert (config.score_scale, config.score_cap, config.logit_cap) == (1 / 12, 50.0, 30.0)
    assert (config.embed_scale, config.activation, config.norms_add_one, config.tied_head) == (
        8,
        "gelu_tanh",
        True,
        True,
    )
    plain = read(**OTHERS["gemma2"], attn_logit_softcapping=None, final_logit_softcapping=7)
    assert (plain.attention_scale, plain.score_cap, plain.logit_cap) == (1 / 16, 0.0, 7.0)


GEMMA3 = OTHERS["gemma2"] | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 7}


@pytest.mark.parametrize(
    ("changes", "windows", "ropes"),
    [
        (
            {"num_hidden_layers": 7, "rope_theta": ...},
            (7, 7, 7, 7, 7, 0, 7),
            (Rope(1_000_000.0), Rope(10_000.0)),
        ),
        (
            {"sliding_window_pattern": 2, "rope_local_base_freq": 5.0, "rope_scaling": {"type": "linear", "factor": 8}},
            (7, 0),
            (Rope(500_000.0, "linear", 8.0), Rope(5.0)),
        ),
        (
            {
                "layer_types": [FULL, SLIDING],
                "rope_theta": ...,
                "rope_parameters": {
                    FULL: {"rope_type": "default", "rope_theta": 3.0},
                    SLIDING: {"rope_type": "default", "rope_theta": 4.0},
                },
            },
            (0, 7),
            (Rope(3.0), Rope(4.0)),
        ),
    ],
)
def test_a_gemma3_config_in_its_older_and_newer_spelling(
    read: Read, changes: dict[str, Any], windows: tuple[int, ...], ropes: tuple[Rope, Rope]
) -> None:
    config = read(**GEMMA3 | changes)
    assert config.architecture == "gemma3"
    assert config.windows == windows
    assert (config.rope, config.local_rope) == ropes
    assert (config.score_cap, config.logit_cap, config.attention_scale) == (0.0, 0.0, 1 / 16)


def test_gemma3_has_no_capped_scores(read: Read) -> None:
    with pytest.raises(UnsupportedModel, match=r"attn_logit_softcapping 50\.0 is not supported"):
        read(**GEMMA3 | {"attn_logit_softcapping": 50.0})
    with pytest.raises(UnsupportedModel, match="'Gemma3ForConditionalGeneration'"):
        read(**GEMMA3 | {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]})


@pytest.mark.parametrize(
    ("family", "changes", "error", "sentence"),
    [
        ("mistral", {"layer_types": [FULL, SLIDING]}, UnsupportedModel, "layer_types other than 'sliding_attention'"),
        ("mistral", {"sliding_window": 0}, ModelError, "sliding_window is 0; a positive integer"),
        ("mistral", {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu' is not supported; only 'silu' is"),
        ("qwen2", {"layer_types": [FULL, SLIDING]}, ModelError, "but use_sliding_window is not true"),
        ("qwen2", {"layer_types": [FULL]}, ModelError, "layer_types has 1 entries for 2 layers"),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, UnsupportedModel, "'full_attention' and 'sliding_attent"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "2"}, ModelError, "max_window_layers is '2'"),
        ("gemma2", {"hidden_activation": "silu"}, UnsupportedModel, "hidden_activation 'silu' is not supported"),
        ("gemma2", {"use_bidirectional_attention": True}, UnsupportedModel, "use_bidirectional_attention True"),
        ("gemma2", {"sliding_window": None}, ModelError, "sliding_window is None"),
        ("gemma2", {"attn_logit_softcapping": -1}, ModelError, "attn_logit_softcapping is -1; a positive number"),
        ("gemma2", {"num_hidden_layers": 10**15}, ModelError, "10000 layers at most"),
    ],
)
def test_windows_and_caps_that_make_no_sense_are_refused_by_name(
    read: Read, family: str, changes: dict[str, Any], error: type[ModelError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        read(**OTHERS[family] | changes)


@pytest.mark.parametrize("data", ["", "{", "[]", "[" * 100_000])
def test_a_broken_file_is_a_sentence(tmp_path: Path, data: str) -> None:
    (tmp_path / "config.json").write_text(data)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


# --- GGUF -----------------------------------------------------------------------------------------------------------

GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.eos_token_id": 2,
}


def read_gguf(changes: dict[str, Any] | None = None, tensors: tuple[str, ...] = ()) -> Any:
    """Reads GGUF with changes; a value of ... removes the key."""
    data = {**GGUF, **(changes or {})}
    shapes = dict.fromkeys(("token_embd.weight", *tensors), SimpleNamespace(shape=(100, 64)))
    metadata = {key: value for key, value in data.items() if value is not ...}
    file: Any = SimpleNamespace(metadata=metadata, tensors=shapes, path=Path("model.gguf"))
    return config_from_gguf(file)


def test_gguf_metadata() -> None:
    config = read_gguf()
    assert (config.vocab_size, config.layers, config.head_dim, config.max_context) == (100, 2, 16, 2048)
    assert config.tied_head
    assert not read_gguf(tensors=("output.weight",)).tied_head
    assert config.rope == Rope(10000.0)
    assert config.eos_ids == (2,)


def test_gguf_rope_scaling() -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert read_gguf(linear).rope == Rope(10000.0, "linear", 4.0)
    assert read_gguf({"llama.rope.scale_linear": 2.0}).rope == Rope(10000.0, "linear", 2.0)
    assert read_gguf(tensors=("rope_freqs.weight",)).rope == Rope(10000.0, "factors")
    with pytest.raises(UnsupportedModel, match="together with rope_freqs"):
        read_gguf(linear, ("rope_freqs.weight",))


def gemma2_gguf(**changes: Any) -> dict[str, Any]:
    data = {key.replace("llama.", "gemma2."): value for key, value in GGUF.items()} | dict.fromkeys(GGUF, ...)
    return data | {"general.architecture": "gemma2", "tokenizer.ggml.eos_token_id": 1} | changes


def test_gguf_of_gemma2() -> None:
    """What GGUF does not say is as llama.cpp has it: alternate layers slide, and 27B has another scale."""
    config = read_gguf(gemma2_gguf(**{"gemma2.attention.sliding_window": 7, "gemma2.attn_logit_softcapping": 20.0}))
    assert (config.windows, config.score_cap, config.logit_cap) == ((7, 0), 20.0, 30.0)
    assert (config.attention_scale, config.embed_scale, config.norms_add_one) == (0.25, 8, True)
    large = read_gguf(
        gemma2_gguf(**{"gemma2.block_count": 46, "gemma2.attention.head_count": 2, "gemma2.attention.key_length": 16})
    )
    assert large.attention_scale == 1 / 32**0.5
    with pytest.raises(UnsupportedModel, match=r"the parameters rope\.freq_base_swa are not supported"):
        read_gguf(gemma2_gguf(**{"gemma2.rope.freq_base_swa": 1e4}))


def test_gguf_of_gemma3() -> None:
    data = {key.replace("gemma2.", "gemma3."): value for key, value in gemma2_gguf().items()}
    config = read_gguf(data | {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 7})
    assert (config.windows, config.local_rope, config.score_cap) == ((7, 7), Rope(10_000.0), 0.0)
    with pytest.raises(ModelError, match=r"gemma3 lacks 'attention\.sliding_window'"):
        read_gguf(data | {"general.architecture": "gemma3"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"general.architecture": "phi3"}, "the architecture 'phi3' is not supported"),
        ({"general.architecture": ...}, "the architecture None"),
        ({"llama.rope.scaling.type": "yarn"}, "RoPE scaling 'yarn'"),
        ({"llama.expert_count": 8}, "expert_count 8 is not supported"),
        ({"llama.attention.sliding_window": 4096}, "attention.sliding_window 4096"),
        ({"llama.attention.causal": False}, "attention.causal False"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count 8 is not supported; only 16 is"),
        ({"llama.attention.value_length": 8}, "attention.value_length 8"),
        ({"llama.attention.logit_softcapping": 30.0}, "the parameters attention.logit_softcapping"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_gguf_that_is_not_supported_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        read_gguf(changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"llama.block_count": ...}, "model.gguf: llama lacks 'block_count'"),
        ({"llama.attention.head_count": np.array([4, 4])}, "attention.head_count is .*; a positive integer"),
        ({"llama.attention.head_count": 128}, "attention.key_length"),
    ],
)
def test_gguf_nonsense_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        read_gguf(changes)


def test_configurations_are_read_without_torch() -> None:
    code = (
        "import sys, sapwood.runtime.model.read_config, sapwood.runtime.weights.hub; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
