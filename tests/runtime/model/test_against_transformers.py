"""Log-probabilities and greedy tokens equal transformers' on the same weights, from every kind of checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.model.loading import load_model
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.wanted import Wanted
from sapwood.runtime.weights.gguf import GGUFFile

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 20_000.0, "factor": 4.0}
VARIANTS = {
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama wide heads": ("llama", {"head_dim": 32}),
    "llama many heads": ("llama", {"num_key_value_heads": 4}),
    "llama linear": ("llama", {"rope_parameters": LINEAR}),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2 untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": {**LINEAR, "factor": 2.0}}),
}
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "  x\n\n1234 é🚲",
    "Q: What is 17 + 25?\nA:",
    "안녕하세요",
    '{"name": "Ada", "age":',
    "a",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "SELECT name FROM users WHERE",
    "Water boils at",
    "# Heading\n\n* item one\n* item",
    "<html><body>",
    "ABSOLUTELY NOT!!! ",
    "To be, or not to be:",
]
CHATS = [
    [("user", "What is the tallest mountain?")],
    [("system", "Answer in French."), ("user", "Good morning!")],
    [("user", "Name a color."), ("assistant", "Blue."), ("user", "Another one?")],
    [("user", "Write a haiku about rain.")],
]
Drive = Callable[..., Any]


def scores(driver: Any, ids: list[int], chunk: int = 1 << 20) -> np.ndarray:
    """The executor's log-probabilities of ids[1:], computed in chunks."""
    driver.open(0, ids, wanted=Wanted("logprobs", 1))
    found: list[float] = []
    original = driver.executor.step

    def collect(*arguments: Any) -> Any:
        output = original(*arguments)
        found.extend(value for each in output.entries if each.prompt is not None for value in each.prompt.logprobs)
        return output

    driver.executor.step = collect
    driver.prefill(0, ids, chunk)
    driver.executor.step = original
    driver.close(0)
    return np.array(found)


def expected_logprobs(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1).numpy()


def own(logprobs: np.ndarray, ids: list[int]) -> np.ndarray:
    return logprobs[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["safetensors", "shards", "gguf"])
def test_tiny_models_agree(
    build: Callable[..., Any],
    save_gguf: Callable[..., Path],
    drive: Drive,
    tmp_path: Path,
    variant: str,
    kind: str,
) -> None:
    family, options = VARIANTS[variant]
    model = build(family, **options)
    if kind == "gguf":
        linear = options.get("rope_parameters", {}).get("rope_type") == "linear"
        factor = options["rope_parameters"]["factor"] if linear else 1.0
        extra = {"rope__scaling__type": "linear", "rope__scaling__factor": factor} if linear else {}
        path = save_gguf(model, tmp_path / "model.gguf", **extra)
    else:
        path = tmp_path / "model"
        model.save_pretrained(path, max_shard_size="60KB" if kind == "shards" else "1GB")
        assert (path / "model.safetensors.index.json").exists() == (kind == "shards")
    driver = drive(path, kv_tokens=1024)
    ids = np.random.default_rng(3).integers(0, 160, 200).tolist()
    expected = own(expected_logprobs(model, ids), ids)
    np.testing.assert_allclose(scores(driver, ids), expected, atol=1e-4)
    np.testing.assert_allclose(scores(driver, ids, chunk=33), expected, atol=1e-4)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_gguf_weights_are_those_that_the_library_dequantizes(
    build: Callable[..., Any], save_gguf: Callable[..., Path], tmp_path: Path, quantization: str
) -> None:
    model = build("qwen2", tie_word_embeddings=False)
    path = save_gguf(model, tmp_path / "model.gguf", quantization)
    file, decoder = GGUFFile(path), load_model(path, torch.float32)
    layer: Any = decoder.layers[1].feed_forward
    torch.testing.assert_close(decoder.head, torch.from_numpy(file.dequantized("output.weight")), rtol=0, atol=0)
    stacked = np.concatenate([file.dequantized(f"blk.1.ffn_{name}.weight") for name in ("gate", "up")])
    torch.testing.assert_close(layer.gate_up, torch.from_numpy(stacked), rtol=0, atol=0)
    step = 0.2 if quantization in ("Q4_0", "Q4_1") else 0.1
    difference = (layer.down - model.model.layers[1].mlp.down_proj.weight).abs().max()
    assert difference < step, "dequantized weights are near the ones that were quantized"


@pytest.fixture(scope="module")
def smollm2_hf(smollm2_path: Path, one_thread: None) -> Any:
    """SmolLM2 as transformers' Llama, filled with the GGUF file's dequantized tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    file = GGUFFile(smollm2_path)
    data = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
    heads, kv_heads = data["attention.head_count"], data["attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=data["vocab_size"],
        hidden_size=data["embedding_length"],
        intermediate_size=data["feed_forward_length"],
        num_hidden_layers=data["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=data["attention.layer_norm_rms_epsilon"],
        max_position_embeddings=data["context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": data["rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    names = {
        "attn_norm.weight": "input_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
    tensors = {
        "model.embed_tokens.weight": file.dequantized("token_embd.weight"),
        "model.norm.weight": file.dequantized("output_norm.weight"),
    }
    for i in range(config.num_hidden_layers):
        for gguf_name, name in names.items():
            array = file.dequantized(f"blk.{i}.{gguf_name}")
            if gguf_name in ("attn_q.weight", "attn_k.weight"):
                rows = array.reshape(heads if "_q" in gguf_name else kv_heads, -1, 2, array.shape[-1])
                array = rows.swapaxes(1, 2).reshape(array.shape)
            tensors[f"model.layers.{i}.{name}"] = array
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.fixture(scope="module")
def smollm2_prompts(smollm2_path: Path) -> list[list[int]]:
    """Twenty prompts as ids: text, and conversations as the model's template writes them."""
    tokenizer = load_tokenizer(smollm2_path)
    chats = []
    for turns in CHATS:
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        chats.append(tokenizer.encode(text + "<|im_start|>assistant\n", allow_control=True))
    return [tokenizer.encode(prompt) for prompt in PROMPTS] + chats


@pytest.fixture(scope="module")
def smollm2_driver(drive: Drive, smollm2_path: Path) -> Any:
    return drive(smollm2_path)


@pytest.mark.slow_with("torch")
def test_smollm2_from_gguf_agrees_on_twenty_prompts(
    smollm2_driver: Any, smollm2_hf: Any, smollm2_prompts: list[list[int]]
) -> None:
    """Greedy tokens by induction: each is the largest of transformers' logits after those before it."""
    completions = smollm2_driver.generate(smollm2_prompts, 12, logprobs=3)
    worst = 0.0
    for row, (prompt, completion) in enumerate(zip(smollm2_prompts, completions, strict=True)):
        expected = expected_logprobs(smollm2_hf, prompt + completion)[len(prompt) - 1 : -1]
        assert completion == expected.argmax(-1).tolist()
        for i, one in enumerate(smollm2_driver.sampled[row]):
            difference = np.abs(expected[i, one.top.ids] - one.top.logprobs).max()
            worst = max(worst, difference, abs(expected[i, completion[i]] - one.logprob))
            assert one.top.ids[0] == completion[i]
    assert worst < 1e-3


def test_smollm2_scores_agree_over_a_long_prompt_in_chunks(
    smollm2_driver: Any, smollm2_hf: Any, smollm2_prompts: list[list[int]]
) -> None:
    ids = [token for prompt in smollm2_prompts for token in prompt][:400]
    expected = own(expected_logprobs(smollm2_hf, ids), ids)
    np.testing.assert_allclose(scores(smollm2_driver, ids, chunk=150), expected, atol=1e-3)


def test_smollm2_knows_the_capital_of_france(smollm2_driver: Any, smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(smollm2_path)
    completion = smollm2_driver.generate([tokenizer.encode("The capital of France is")], 1)[0]
    assert tokenizer.token_bytes(completion[0]) == b" Paris"


def test_smollm2_from_safetensors_has_the_very_weights_of_the_gguf(
    smollm2_path: Path, smollm2_hf: Any, tmp_path: Path
) -> None:
    smollm2_hf.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, torch.float32)
    expected = load_model(smollm2_path, torch.float32)
    assert loaded.config.tied_head
    assert loaded.head is loaded.embed
    for one, other in zip(loaded.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(loaded.rope_frequencies, expected.rope_frequencies, rtol=1e-6, atol=0)
