"""Random models of a given shape, on the device that is checked, and how they are run there."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from sapwood.runtime.attention.flashinfer import FlashInferAttention, why_not
from sapwood.runtime.attention.torch import TorchAttention
from sapwood.runtime.execution.graphs import Capture
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.execution.runner import TorchRunner
from sapwood.runtime.model.config import ModelConfig, Rope
from sapwood.runtime.model.decoder import Decoder
from sapwood.runtime.model.fixed_rows import FixedRows
from sapwood.runtime.model.forward import Forward
from sapwood.runtime.model.fused import FusedArithmetic
from sapwood.runtime.model.layers.decoder_layer import DecoderLayer
from sapwood.runtime.model.layers.feed_forward import GatedMLP
from sapwood.runtime.model.layers.norm import RMSNorm
from sapwood.runtime.model.layers.rotary import rope_frequencies
from sapwood.runtime.model.layers.self_attention import SelfAttention

LLAMA_8B = ModelConfig("llama", 128_256, 4096, 14_336, 32, 32, 8, 128, 1e-5, 16_384, Rope(500_000.0), False, ())
SMALL = ModelConfig("llama", 8192, 1024, 2816, 4, 16, 4, 64, 1e-5, 16_384, Rope(), False, ())
TINY = ModelConfig("llama", 64, 96, 64, 2, 6, 2, 64, 1e-5, 2048, Rope(), False, ())


@dataclass(frozen=True)
class Place:
    """Where everything runs. capture: makes graphs. rehearsal: on the CPU, to find mistakes of the script only."""

    device: torch.device
    dtype: torch.dtype
    flashinfer: ModuleType | None
    capture: Capture
    rehearsal: bool

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forget(self) -> None:
        """Gives back what was freed."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def random_model(config: ModelConfig, place: Place) -> Decoder:
    """Weights of a size that keeps activations finite through all layers."""
    generator = torch.Generator(place.device).manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        drawn = torch.empty(shape, dtype=place.dtype, device=place.device)
        return drawn.normal_(0.0, shape[-1] ** -0.5, generator=generator)

    def norm() -> RMSNorm:
        return RMSNorm(torch.ones(config.hidden_size, dtype=place.dtype, device=place.device), config.rms_eps)

    def attention() -> SelfAttention:
        qkv, out = weight(rows, config.hidden_size), weight(config.hidden_size, config.heads * config.head_dim)
        return SelfAttention(config.heads, config.kv_heads, config.head_dim, qkv, out)

    def feed_forward() -> GatedMLP:
        gate_up = weight(2 * config.intermediate_size, config.hidden_size)
        return GatedMLP(gate_up, weight(config.hidden_size, config.intermediate_size))

    rows = (config.heads + 2 * config.kv_heads) * config.head_dim
    layers = [DecoderLayer(norm(), attention(), norm(), feed_forward()) for _ in range(config.layers)]
    embed, head = weight(config.vocab_size, config.hidden_size), weight(config.vocab_size, config.hidden_size)
    frequencies = rope_frequencies(config.rope, config.head_dim, None).to(place.device)
    return Decoder(config, embed, layers, norm(), head, frequencies)


def make_runner(model: Decoder, place: Place, slots: int, *, most: int = 0, invariant: bool = False) -> TorchRunner:
    """The model as a worker runs it here: with FlashInfer where it is installed. most: entries that graphs compute.
    invariant: in the deterministic mode."""
    pool = KVPool(model.config, slots, place.dtype, place.device)
    attention: Any
    if place.flashinfer is None or why_not(model.config, place.dtype):
        return TorchRunner(model, pool, TorchAttention(model.config, pool))
    attention = FlashInferAttention(model.config, pool, place.dtype, invariant=invariant)
    forward = Forward(model, FusedArithmetic(model, attention.kernels))
    runner = TorchRunner(model, pool, attention, FixedRows(forward) if invariant else forward)
    with torch.inference_mode():
        runner.warm_up()
    if most:
        runner.capture_decodes(most, place.capture, lambda _: None)
    return runner
