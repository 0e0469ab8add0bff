"""Attention over slots: right, blind to foreign slots, and the same bits in any company, cut or order of work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from batches import Part, Tokens, plain_attention, step_of
from tiny_model import TinyModel

from sapwood.runtime.attention.base import SharedPrefix
from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.execution.runner import ModelStep
from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.decoder import NativeDecoder

Tiny = Callable[..., TinyModel]
SLOTS = 4096


def sequence(rng: np.random.Generator, length: int, begin: np.ndarray | None = None) -> Tokens:
    """Slots drawn at random, the first ones being those of `begin`."""
    shared = np.empty(0, np.int32) if begin is None else begin
    free = np.setdiff1d(np.arange(SLOTS, dtype=np.int32), shared)
    slots = np.concatenate((shared, rng.permutation(free)[: length - len(shared)]))
    return Tokens(np.zeros(length, np.int32), slots.astype(np.int32))


def fill(decoder: NativeDecoder, step: ModelStep, rng: np.random.Generator) -> None:
    """Numbers in all slots that the step may read; the others keep their NaN."""
    slots = torch.from_numpy(np.unique(step.kv_indices).astype(np.int64))
    for index in range(decoder.config.layers):
        for pool in decoder.pool.layer(index):
            values = rng.normal(size=(SLOTS, *pool.shape[1:])).astype(np.float32)
            pool[slots] = torch.from_numpy(values)[slots].to(pool.dtype)


def queries(decoder: NativeDecoder, step: ModelStep, rng: np.random.Generator) -> np.ndarray:
    shape = (len(step.token_ids), decoder.config.heads, decoder.config.head_dim)
    return (rng.normal(size=shape) * 2).astype(np.float32)


def mixed_step(rng: np.random.Generator) -> ModelStep:
    """Decodes, a whole prompt, extensions of long and short prefixes; some lengths at the edges of blocks."""
    parts = [(1, 0), (64, 63), (65, 64), (200, 0), (700, 660), (1100, 1099), (513, 512), (130, 97), (1030, 900)]
    return step_of([Part(sequence(rng, end), start, end) for end, start in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(6, 2, 32), (3, 3, 48), (8, 1, 64), (4, 2, 80), (2, 1, 128), (2, 2, 256)]
)
def test_it_equals_plain_attention_and_reads_no_foreign_slot(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, make_tiny: Tiny, library: Library
) -> None:
    rng = np.random.default_rng(head_dim)
    tiny = make_tiny(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    decoder = tiny.native(library, slots=SLOTS, dtype=dtype)
    step = mixed_step(rng)
    fill(decoder, step, rng)
    q = queries(decoder, step, rng)
    keys, values = (pool.float().numpy() for pool in decoder.pool.layer(1))
    out = decoder.attention(1, step, q)
    np.testing.assert_allclose(out, plain_attention(q, keys, values, step), atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [32, 48])
def test_the_bits_depend_on_nothing_but_the_query_and_its_keys(
    head_dim: int, dtype: torch.dtype, make_tiny: Tiny, libraries: dict[str, Library]
) -> None:
    rng = np.random.default_rng(3)
    tiny = make_tiny(head_dim=head_dim)
    step = mixed_step(rng)
    q = None
    results: dict[tuple[str, int], np.ndarray] = {}
    for isa, library in libraries.items():
        for threads in (1, 2, 3) if isa != "portable" else (2,):
            decoder = tiny.native(library, threads=threads, slots=SLOTS, dtype=dtype)
            fill(decoder, step, np.random.default_rng(4))
            q = queries(decoder, step, rng) if q is None else q
            results[isa, threads] = decoder.attention(0, step, q)
            for b in range(len(step.qo_indptr) - 1):  # each entry alone, its last query alone, and cut in two
                begin, end = step.qo_indptr[b : b + 2]
                slots = step.kv_indices[step.kv_indptr[b] : step.kv_indptr[b + 1]]
                whole = Tokens(np.zeros(len(slots), np.int32), slots)
                first = len(slots) - (end - begin)
                for start, stop in {
                    (first, len(slots)),
                    (len(slots) - 1, len(slots)),
                    (first, first + (end - begin + 1) // 2),
                }:
                    rows = slice(begin + start - first, begin + stop - first)
                    alone = decoder.attention(0, step_of([Part(whole, start, stop)]), q[rows])
                    assert np.array_equal(alone, results[isa, threads][rows]), (isa, threads, b, start, stop)
    first_result = next(iter(results.values()))
    for key, result in results.items():
        assert np.array_equal(result, first_result), key


@pytest.mark.parametrize("prefix", [63, 64, 200, 512, 580, 1024])
@pytest.mark.parametrize("threads", [1, 2])
def test_groups_change_no_bit(prefix: int, threads: int, make_tiny: Tiny, libraries: dict[str, Library]) -> None:
    rng = np.random.default_rng(prefix)
    begin = rng.permutation(SLOTS)[:prefix].astype(np.int32)
    other = rng.permutation(SLOTS)[:300].astype(np.int32)
    lengths = [(prefix + 1, prefix), (prefix + 70, prefix + 69), (prefix + 1, prefix), (prefix + 600, prefix + 599)]
    parts = [Part(sequence(rng, end, begin), start, end) for end, start in lengths]
    parts.insert(2, Part(sequence(rng, 333), 330, 333))  # in no group
    parts.append(Part(sequence(rng, prefix + 40, begin), prefix, prefix + 40))  # a prompt's chunk
    parts += [Part(sequence(rng, 310, other), 305, 310), Part(sequence(rng, 301, other), 300, 301)]
    groups = [SharedPrefix([0, 1, 3, 4, 5], prefix), SharedPrefix([7, 6], 300)]
    for library in libraries.values():
        decoder = make_tiny().native(library, threads=threads, slots=SLOTS)
        alone = step_of(parts)
        fill(decoder, alone, np.random.default_rng(1))
        q = queries(decoder, alone, np.random.default_rng(2))
        assert np.array_equal(decoder.attention(0, step_of(parts, groups), q), decoder.attention(0, alone, q))


@pytest.mark.parametrize("prefix", [512, 600])
def test_long_requests_are_cut_among_threads_without_changing_a_bit(
    prefix: int, make_tiny: Tiny, library: Library
) -> None:
    rng = np.random.default_rng(9)
    begin = rng.permutation(SLOTS)[:prefix].astype(np.int32)
    parts = [Part(sequence(rng, end, begin), end - 1, end) for end in (3000, 1500)]
    results = []
    for threads in (1, 4):
        for groups in ([], [SharedPrefix([0, 1], prefix)]):
            decoder = make_tiny().native(library, threads=threads, slots=SLOTS)
            fill(decoder, step_of(parts), np.random.default_rng(1))
            step = step_of(parts, groups)
            results.append(decoder.attention(0, step, queries(decoder, step, np.random.default_rng(2))))
    assert all(np.array_equal(result, results[0]) for result in results)


def test_a_key_that_is_not_a_number_spoils_its_own_entry_only(make_tiny: Tiny, libraries: dict[str, Library]) -> None:
    rng = np.random.default_rng(5)
    parts = [Part(sequence(rng, end), start, end) for end, start in ((100, 60), (90, 89), (700, 690))]
    step = step_of(parts)
    for library in libraries.values():
        decoder = make_tiny().native(library, slots=SLOTS)
        fill(decoder, step, rng)
        decoder.pool.poison(torch.tensor([int(parts[0].sequence.slots[70])]))
        out = decoder.attention(0, step, queries(decoder, step, rng))
        assert np.isnan(out[10:40]).all(), "queries that see the key have no number to give"
        assert not np.isnan(out[40:]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_indices": np.array([0, SLOTS], np.int32)}, "outside of the KV pool"),
        ({"kv_indices": np.array([0, -1], np.int32)}, "outside of the KV pool"),
        ({"kv_indptr": np.array([0, 1], np.int32)}, "does not end at the number"),
        ({"qo_indptr": np.array([0, 2], np.int32)}, "do not fit together"),
        ({"shared": [SharedPrefix([0, 3], 64)]}, "of a group"),
    ],
)
def test_a_step_that_is_not_sound_is_refused(
    change: dict[str, object], message: str, make_tiny: Tiny, library: Library
) -> None:
    decoder = make_tiny().native(library, slots=SLOTS)
    sound = step_of([Part(Tokens(np.zeros(2, np.int32), np.arange(2, dtype=np.int32)), 1, 2)])
    step = ModelStep(**{**vars(sound), **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        decoder.attention(0, step, np.zeros((1, 6, 32), np.float32))


def test_groups_must_share_what_they_say(make_tiny: Tiny, library: Library) -> None:
    rng = np.random.default_rng(5)
    decoder = make_tiny().native(library, slots=SLOTS)
    step = step_of([Part(sequence(rng, 100), 99, 100) for _ in range(2)], [SharedPrefix([0, 1], 64)])
    with pytest.raises(ValueError, match="do not share the slots"):
        decoder.attention(0, step, np.zeros((2, 6, 32), np.float32))


def test_head_sizes_that_the_kernels_lack_are_refused_by_name(make_tiny: Tiny, library: Library) -> None:
    with pytest.raises(UnsupportedModel, match="multiples of 16 up to 256, not 24"):
        make_tiny(head_dim=24).native(library)
