"""A whole step in one call: what torch computes, with bits that do not depend on the company or the cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import Part, Tokens, step_of
from tiny_model import TinyModel
from torch_steps import TorchSteps

from sapwood.runtime.attention.base import SharedPrefix
from sapwood.runtime.execution.kv_pool import KVPool
from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.decoder import NativeDecoder
from sapwood.runtime.kernels.loading import load_weights
from sapwood.runtime.model.loading import load_model

Tiny = Callable[..., TinyModel]


def prompts(rng: np.random.Generator, lengths: list[int], vocab: int, slots: int) -> list[Tokens]:
    """Sequences of random ids in random slots of their own."""
    free = rng.permutation(slots).astype(np.int32)
    cuts = np.cumsum([0, *lengths])
    return [Tokens(rng.integers(0, vocab, n).astype(np.int32), free[cut : cut + n]) for n, cut in zip(lengths, cuts)]


@pytest.mark.parametrize(
    "options", [{}, {"biased": True, "tied": False}, {"heads": 3, "kv_heads": 1, "head_dim": 48}], ids=str
)
def test_hidden_states_and_logits_are_torchs_to_rounding(options: dict, make_tiny: Tiny, library: Library) -> None:
    rng = np.random.default_rng(1)
    tiny = make_tiny(**options)
    decoder, reference = tiny.native(library), TorchSteps(tiny.reference, 512)
    sequences = prompts(rng, [70, 1, 130, 20], 300, 512)
    cuts = [(0, 40), (0, 1), (0, 129), (0, 7)], [(40, 70), (129, 130), (7, 20)]
    for step in (
        step_of([Part(s, *cut) for s, cut in zip(sequences, cuts[0])]),
        step_of([Part(sequences[i], *cut) for i, cut in zip((0, 2, 3), cuts[1])], last_only=True),
    ):
        hidden = decoder.forward(step)
        logits = decoder.logits(hidden)
        expected_hidden, expected_logits = reference.forward(step)
        torch.testing.assert_close(hidden, expected_hidden, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(logits, expected_logits, atol=5e-4, rtol=1e-4)


def run(decoder: NativeDecoder, parts: list[Part], shared: tuple[SharedPrefix, ...] = ()) -> torch.Tensor:
    """The logits of all of the parts' tokens."""
    return decoder.logits(decoder.forward(step_of(parts, shared)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_do_not_depend_on_company_cuts_threads_or_instruction_set(
    dtype: torch.dtype, make_tiny: Tiny, libraries: dict[str, Library]
) -> None:
    rng = np.random.default_rng(2)
    tiny = make_tiny(biased=True)
    target, *company = prompts(rng, [150, *[10] * 31], 300, 512)
    first = None
    for isa, library in libraries.items():
        decoder = tiny.native(library, threads=1, dtype=dtype)
        whole = run(decoder, [Part(target, 0, 150)])
        first = whole if first is None else first
        assert torch.equal(whole, first), isa
        for threads in (1, 2, 3):
            decoder = tiny.native(library, threads=threads, dtype=dtype)
            for cut in (1, 63, 64, 65, 149) if isa != "portable" else (64,):
                run(decoder, [Part(target, 0, cut)])
                others = [Part(other, 0, 10) for other in company]
                among = run(decoder, [*others[:5], Part(target, cut, 150), *others[5:]])
                assert torch.equal(among[50 : 50 + 150 - cut], whole[cut:]), (isa, threads, cut)


def test_logits_do_not_depend_on_groups(make_tiny: Tiny, library: Library) -> None:
    rng = np.random.default_rng(3)
    decoder = make_tiny().native(library)
    (prefix,) = prompts(rng, [140], 300, 400)
    run(decoder, [Part(prefix, 0, 140)])
    tails = [
        Tokens(
            np.concatenate((prefix.token_ids, rng.integers(0, 300, 3).astype(np.int32))),
            np.concatenate((prefix.slots, np.arange(400 + 3 * i, 403 + 3 * i, dtype=np.int32))),
        )
        for i in range(20)
    ]
    parts = [Part(tail, 140, 143) for tail in tails]
    grouped = run(decoder, parts, (SharedPrefix(range(20), 140),))
    assert torch.equal(grouped, run(decoder, parts))


def test_only_the_rows_that_are_wanted_come_back(make_tiny: Tiny, library: Library) -> None:
    rng = np.random.default_rng(4)
    decoder = make_tiny().native(library)
    parts = [Part(one, 0, len(one.slots)) for one in prompts(rng, [30, 20, 7], 300, 512)]
    step = step_of(parts)
    hidden = decoder.forward(step)
    logits = decoder.logits(hidden)
    for rows in ([], [56], [0, 29, 30, 31, 55]):
        some = dataclasses.replace(step, output_rows=np.array(rows, np.int32))
        assert torch.equal(decoder.forward(some), hidden[rows])
        assert torch.equal(decoder.logits(hidden[rows]), logits[rows])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": np.array([300], np.int32)}, "outside of the vocabulary"),
        ({"token_ids": np.array([-1], np.int32)}, "outside of the vocabulary"),
        ({"slots": np.array([512], np.int32)}, "outside of the KV pool"),
        ({"output_rows": np.array([1], np.int32)}, "do not fit together"),
        ({"positions": np.array([0, 1], np.int32)}, "differ in length"),
    ],
)
def test_a_step_that_is_not_sound_is_refused(
    change: dict[str, np.ndarray], message: str, make_tiny: Tiny, library: Library
) -> None:
    sound = step_of([Part(Tokens(np.zeros(1, np.int32), np.zeros(1, np.int32)), 0, 1)])
    with pytest.raises(ValueError, match=message):
        make_tiny().native(library).forward(dataclasses.replace(sound, **change))


def test_smollm2_is_torchs_to_rounding_and_repeats_bit_for_bit(smollm2_path: Path, library: Library) -> None:
    rng = np.random.default_rng(5)
    config, weights = load_weights(smollm2_path, library, 2)
    decoder = NativeDecoder(config, weights, KVPool(config, 256, torch.float32), library, 2)
    (target,) = prompts(rng, [90], config.vocab_size, 256)
    step = step_of([Part(target, 0, 90)])
    logits = decoder.logits(decoder.forward(step))
    _, expected = TorchSteps(load_model(smollm2_path, torch.float32), 256).forward(step)
    torch.testing.assert_close(torch.log_softmax(logits, -1), torch.log_softmax(expected, -1), atol=2e-3, rtol=0)
    assert (logits.argmax(-1) == expected.argmax(-1)).float().mean() > 0.98
    for cut in (1, 64, 89):
        run(decoder, [Part(target, 0, cut)])
        assert torch.equal(run(decoder, [Part(target, cut, 90)]), logits[cut:])
    assert decoder.weight_bytes < 1.01 * smollm2_path.stat().st_size
