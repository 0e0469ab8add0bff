"""The pool's size follows the options and the memory there is; poison reaches exactly the slots it is given."""

from __future__ import annotations

import pytest
import torch

from sapwood.runtime.errors import ModelError
from sapwood.runtime.execution import kv_pool
from sapwood.runtime.execution.kv_pool import KVPool, available_memory, bytes_per_token, slots_that_fit
from sapwood.runtime.model.config import ModelConfig, Rope

CONFIG = ModelConfig("llama", 10, 32, 8, 3, 4, 2, 8, 1e-5, 128, Rope(), True, ())


def test_a_token_takes_k_and_v_of_every_layer() -> None:
    assert bytes_per_token(CONFIG, torch.float32) == 2 * 3 * 2 * 8 * 4
    assert bytes_per_token(CONFIG, torch.bfloat16) == 2 * 3 * 2 * 8 * 2


def test_the_size_is_what_was_asked_for_or_a_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pool, "available_memory", lambda: 384 * 1000)
    assert slots_that_fit(384, kv_tokens=77, memory_fraction=0.5) == 77
    assert slots_that_fit(384, kv_tokens=0, memory_fraction=0.5) == 500
    assert slots_that_fit(192, kv_tokens=0, memory_fraction=0.5) == 1000
    with pytest.raises(ModelError, match="a KV pool of 2000 tokens takes"):
        slots_that_fit(384, kv_tokens=2000, memory_fraction=0.5)
    with pytest.raises(ModelError, match="it needs 2 at least: raise kv_tokens, or kv_memory_fraction"):
        slots_that_fit(384, kv_tokens=0, memory_fraction=0.001)


def test_available_memory_is_a_plausible_number_of_bytes() -> None:
    assert 10**7 < available_memory() < 10**14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_store_and_poison_touch_their_slots_in_their_layer_only(dtype: torch.dtype) -> None:
    pool = KVPool(CONFIG, 10, dtype)
    for layer in range(3):
        zeros = torch.zeros(10, 2, 8)
        pool.store(layer, torch.arange(10), zeros, zeros)
    k, v = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    pool.store(1, torch.tensor([7, 2]), k, v)
    keys, values = pool.layer(1)
    assert torch.equal(keys[[7, 2]], k.to(dtype))
    assert torch.equal(values[[7, 2]], v.to(dtype))
    assert not keys[[0, 1, 3, 4, 5, 6, 8, 9]].any()
    assert not pool.layer(0)[0].any()
    pool.poison(torch.tensor([2, 3]))
    for layer in range(3):
        for tensor in pool.layer(layer):
            assert tensor[:10].isnan().all(-1).all(-1).tolist() == [slot in (2, 3) for slot in range(10)]
            assert not tensor[pool.padding_slot].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_slots_go_to_a_sibling_and_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    pool = KVPool(CONFIG, 10, dtype)
    tier = pool.sibling(20)
    for layer in range(3):
        pool.store(layer, torch.arange(10), torch.randn(10, 2, 8), torch.randn(10, 2, 8))
    before = [[tensor.view(torch.uint8).clone() for tensor in pool.layer(layer)] for layer in range(3)]
    out, places, back = torch.tensor([7, 2, 5]), torch.tensor([19, 0, 4]), torch.tensor([1, 3, 5])
    pool.copy(out, tier, places)
    pool.poison(out)
    tier.copy(places, pool, back)
    for layer in range(3):
        for tensor, old in zip(pool.layer(layer), before[layer]):
            assert torch.equal(tensor.view(torch.uint8)[back], old[out])
            assert torch.equal(tensor.view(torch.uint8)[[0, 4, 6, 8, 9]], old[[0, 4, 6, 8, 9]])
            assert tensor[2].float().isnan().all()
