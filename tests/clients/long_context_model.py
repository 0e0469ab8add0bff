"""A model for agents, whose prompts do not fit into the bundled one: its tokenizer and chat template, random weights of
two small layers, and a context of 65,536 tokens. What it writes is forced by a grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 65536
_LAYERS, _WIDTH, _HEADS, _INNER = 2, 64, 1, 128


def write_long_context_model(like: Path, path: Path) -> Path:
    """Write a GGUF file with the tokenizer and chat template of another."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    vocabulary = 0
    for name, field in gguf.GGUFReader(str(like)).fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.tokens":
            vocabulary = len(value)
        kind, *inner = field.types
        writer.add_key_value(name, value, kind, inner[0] if inner else None)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        drawn = random.standard_normal(shape, dtype=np.float32) * 0.02 if len(shape) > 1 else np.ones(shape, np.float32)
        writer.add_tensor(f"{name}.weight", drawn)

    add("token_embd", vocabulary, _WIDTH)
    add("output_norm", _WIDTH)
    for i in range(_LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{part}", _WIDTH, _WIDTH)
        add(f"blk.{i}.ffn_gate", _INNER, _WIDTH)
        add(f"blk.{i}.ffn_up", _INNER, _WIDTH)
        add(f"blk.{i}.ffn_down", _WIDTH, _INNER)
        add(f"blk.{i}.attn_norm", _WIDTH)
        add(f"blk.{i}.ffn_norm", _WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
