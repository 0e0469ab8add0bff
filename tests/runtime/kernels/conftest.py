"""The kernel library, built where it is missing or older than its sources, and a tiny model to run on it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.runtime.kernels import bindings, build
from sapwood.runtime.kernels.bindings import KernelsMissing, Library
from sapwood.runtime.kernels.decoder import LayerWeights, Weights
from sapwood.runtime.kernels.packing import PackedMatrix, Packer
from sapwood.runtime.model.config import ModelConfig, Rope
from sapwood.runtime.model.decoder import Decoder
from sapwood.runtime.model.layers.decoder_layer import DecoderLayer
from sapwood.runtime.model.layers.feed_forward import GatedMLP
from sapwood.runtime.model.layers.norm import RMSNorm
from sapwood.runtime.model.layers.rotary import rope_frequencies
from sapwood.runtime.model.layers.self_attention import SelfAttention

sys.path.insert(0, str(Path(__file__).parent))  # the modules that are no tests are this folder's own

from tiny_model import TinyModel

ISAS = ("avx512", "avx2", "neon", "portable")


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    """The library once for each instruction set that this machine runs, from a copy of its file each."""
    path = bindings.library_path()
    if not build.is_current(path):
        try:
            build.build(path)
        except build.BuildError as error:
            pytest.skip(f"the kernels cannot be built here: {error}")
    folder = tmp_path_factory.mktemp("kernels")
    found: dict[str, Library] = {}
    for isa in ISAS:
        with environment("SAPWOOD_KERNEL_ISA", isa):
            try:
                found[isa] = Library(Path(shutil.copy(path, folder / f"{isa}.so")))
            except KernelsMissing:
                continue
            assert found[isa].isa == isa
    return found


@pytest.fixture(scope="session")
def library(libraries: dict[str, Library]) -> Library:
    """The library with the fastest instruction set of this machine."""
    return next(iter(libraries.values()))


@pytest.fixture(scope="session")
def make_tiny(library: Library) -> Callable[..., TinyModel]:
    """Makes models: 2 layers, and whatever else is named. biased: as Qwen2 has it. tied: one matrix for both ends."""

    def make(
        *, heads: int = 6, kv_heads: int = 2, head_dim: int = 32, biased: bool = False, tied: bool = True
    ) -> TinyModel:
        width, inner, vocab = 96, 160, 300
        config = ModelConfig(
            "qwen2" if biased else "llama", vocab, width, inner, 2, heads, kv_heads, head_dim, 1e-5, 4096,
            Rope(10_000.0), tied, (),
        )  # fmt: skip
        random = torch.Generator().manual_seed(heads * 1000 + head_dim)
        packer = Packer(library, library.workspace(1))

        def matrix(n: int, k: int) -> torch.Tensor:
            return torch.randn(n, k, generator=random) / k**0.5

        def vector(n: int) -> torch.Tensor:
            return 1 + torch.randn(n, generator=random) / 4

        def packed(values: torch.Tensor) -> PackedMatrix:
            return packer.pack("F32", values.contiguous().view(torch.uint8).numpy().reshape(-1), values.shape[1])

        layers, packed_layers = [], []
        rows = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        for _ in range(config.layers):
            q, k, v = (matrix(n, width) * 2 for n in rows)
            gate, up, out, down = (
                matrix(inner, width),
                matrix(inner, width),
                matrix(width, rows[0]),
                matrix(width, inner),
            )
            bias = torch.randn(sum(rows), generator=random) / 4 if biased else None
            norms = vector(width), vector(width)
            attention = SelfAttention(heads, kv_heads, head_dim, torch.cat((q, k, v)), out, bias)
            attn_norm, mlp_norm = (RMSNorm(weight, config.rms_eps) for weight in norms)
            layers.append(DecoderLayer(attn_norm, attention, mlp_norm, GatedMLP(torch.cat((gate, up)), down)))
            packed_layers.append(
                LayerWeights(
                    *map(packed, (q, k, v, out, gate, up, down)),
                    attn_norm=norms[0].numpy(),
                    mlp_norm=norms[1].numpy(),
                    qkv_bias=None if bias is None else bias.numpy(),
                )
            )
        embed, norm = matrix(vocab, width) * 4, vector(width)
        head = embed if tied else matrix(vocab, width)
        frequencies = rope_frequencies(config.rope, head_dim, None)
        packed_embed = packed(embed)
        weights = Weights(
            packed_layers, packed_embed, packed_embed if tied else packed(head), norm.numpy(), frequencies.numpy()
        )
        return TinyModel(
            config, Decoder(config, embed, layers, RMSNorm(norm, config.rms_eps), head, frequencies), weights
        )

    return make


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
