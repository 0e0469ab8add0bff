"""The KV pool: keys and values of every token slot, per layer. It knows no requests, and never says who owns a slot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError
from ..model.config import ModelConfig

MIN_SLOTS = 2  # a prompt of one token, and one token to generate
CACHE_LINE = 64  # bytes
CPU = torch.device("cpu")
NAN_BYTE = 0x7F  # a NaN of float8_e4m3fn


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def slots_that_fit(per_token: int, *, kv_tokens: int, memory_fraction: float, device: torch.device = CPU) -> int:
    """How many slots to allocate: `kv_tokens`, or if 0, what `memory_fraction` of the device's available memory holds.

    per_token: bytes that a token takes of this memory. Raises ModelError if the result is less than a request needs,
    or more than the available memory.
    """
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    slots = kv_tokens or int(available * memory_fraction) // per_token
    if slots < MIN_SLOTS:
        raise ModelError(
            f"the KV pool would hold {slots} tokens of {per_token} bytes each; it needs {MIN_SLOTS} at least: "
            "raise kv_tokens, or kv_memory_fraction"
        )
    if slots * per_token > available:
        raise ModelError(
            f"a KV pool of {slots} tokens takes {slots * per_token / 1e9:.1f} GB; "
            f"{available / 1e9:.1f} GB of memory are available"
        )
    return slots


def available_memory() -> int:
    """Bytes that this process may still take: the system's, or its control group's where that is less."""
    return min(_system_available(), _group_available())


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: take what is physically there
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_available() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return max(0, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or its limit reads "max"
        return sys.maxsize


class KVPool:
    """K and V tensors, each [slots + 1, kv_heads, head_dim] per layer.

    Slot number `slots` is the padding slot: zeros, for backends that pad ragged lists to a rectangle; others may let
    padded tokens write there. All other slots are uninitialized until stored, so a reader must not let a slot that it
    does not own reach its results, not even multiplied by zero.
    """

    def __init__(self, config: ModelConfig, slots: int, dtype: torch.dtype, device: torch.device = CPU) -> None:
        self._config = config
        self.slots = slots
        self.padding_slot = slots
        self.dtype = dtype
        self.device = device
        self.nbytes = slots * bytes_per_token(config, dtype)
        shape = (slots + 1, config.kv_heads, config.head_dim)
        self._keys = [_uninitialized(shape, dtype, device) for _ in range(config.layers)]
        self._values = [_uninitialized(shape, dtype, device) for _ in range(config.layers)]
        for tensor in (*self._keys, *self._values):
            _bits(tensor)[self.padding_slot] = 0

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer."""
        return self._keys[index], self._values[index]

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes k and v [tokens, kv_heads, head_dim] to slots, integer [tokens], no slot twice."""
        _bits(self._keys[layer]).index_copy_(0, slots, _bits(k.to(self.dtype)))
        _bits(self._values[layer]).index_copy_(0, slots, _bits(v.to(self.dtype)))

    def sibling(self, slots: int, device: torch.device = CPU) -> KVPool:
        """Another pool of tokens alike, of a size and in a memory of its own."""
        return KVPool(self._config, slots, self.dtype, device)

    def copy(self, slots: Tensor, to: KVPool, places: Tensor) -> None:
        """Copies K and V of slots, integer [tokens], to as many places of a sibling, no place twice, bit for bit."""
        for mine, its in zip((*self._keys, *self._values), (*to._keys, *to._values), strict=True):
            found = _bits(mine).index_select(0, slots.to(self.device))
            _bits(its).index_copy_(0, places.to(to.device), found.to(to.device))

    def poison(self, slots: Tensor) -> None:
        """Fills slots with NaN in every layer, so that a later use of freed memory shows."""
        for tensor in (*self._keys, *self._values):
            bits = _bits(tensor)
            bits.index_fill_(0, slots.to(self.device), NAN_BYTE if bits is not tensor else float("nan"))


def _bits(tensor: Tensor) -> Tensor:
    """The tensor as what torch can copy by index: itself, or the bytes of an eight-bit float."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _uninitialized(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory the system only provides where it is first written, in huge pages (which numpy asks for).

    It begins at a cache line, which a vector load would otherwise straddle.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return torch.from_numpy(raw[start : start + size]).view(dtype).view(shape)
