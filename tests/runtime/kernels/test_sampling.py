"""The kernels choose what torch chooses, on every instruction set, with any number of threads and of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.kernels.bindings import Library
from sapwood.runtime.kernels.sampling import NativeSampler
from sapwood.runtime.sampling import torch_choice as torch_sampling
from sapwood.runtime.sampling.sampling_state import SamplingState

VOCABS = (3, 97, 1000, 20_011)  # none a multiple of a vector or of a mask's word; the last one of 157 blocks

option_sets = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-9, 0.1, 0.7, 1.0, 2.0, 1e6]),
        "seed": st.integers(0, 2**64 - 1),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 500, 30_000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.999999, 0.9, 0.5, 1e-9]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-6, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, -0.3]),
        "logit_bias": st.sampled_from([{}, {}, {0: 5.0, 2: -100.0}]),
        "min_tokens": st.sampled_from([0, 8]),
    }
)
spreads = st.sampled_from([0.0, 0.01, 2.0, 30.0])  # of the logits: all alike, nearly alike, usual, far apart


def batch(
    sampling: Any, options: list[dict[str, Any]], vocab: int, spread: float, seed: int
) -> tuple[np.ndarray, list[SamplingState], np.ndarray, np.ndarray]:
    """Logits, states, positions and bitmasks (every second row may take anything)."""
    rng = np.random.default_rng(seed)
    rows = len(options)
    logits = rng.normal(0, 1, (rows, vocab)).astype(np.float32) * np.float32(spread)
    masks = rng.integers(-(2**31), 2**31, (rows, -(-vocab // 32))).astype(np.int32)
    masks[::2] = -1
    masks[:, 0] |= 0b110  # nothing is left of no row: token 2 is never a stop id
    states = [
        SamplingState(sampling(**one), (1,), rng.integers(0, vocab, 5), rng.integers(0, vocab, 4), vocab)
        for one in options
    ]
    return logits, states, rng.integers(0, 10_000, rows), masks


@settings(max_examples=120, deadline=None)
@given(
    options=st.lists(option_sets, min_size=1, max_size=9),
    vocab=st.sampled_from(VOCABS),
    spread=spreads,
    seed=st.integers(0, 2**32),
)
def test_the_kernels_choose_what_torch_chooses(
    samplers: list[NativeSampler], sampling: Any, options: list[dict[str, Any]], vocab: int, spread: float, seed: int
) -> None:
    logits, states, positions, masks = batch(sampling, options, vocab, spread, seed)
    expected = torch_sampling.choose(torch.from_numpy(logits), states, positions, masks).numpy()
    assert (expected >= 0).all()
    for sampler in samplers:
        np.testing.assert_array_equal(sampler.choose(logits, states, positions, masks), expected)
        alone = [
            sampler.choose(logits[i : i + 1], states[i : i + 1], positions[i : i + 1], masks[i : i + 1])
            for i in range(len(states))
        ]
        np.testing.assert_array_equal(np.concatenate(alone), expected)


@pytest.fixture(scope="session")
def samplers(libraries: dict[str, Library]) -> list[NativeSampler]:
    """Each instruction set's, with one thread, two and three in turn."""
    return [NativeSampler(library, 1 + i % 3) for i, library in enumerate(libraries.values())] + [
        NativeSampler(next(iter(libraries.values())), threads) for threads in (2, 3)
    ]


def test_a_mask_that_leaves_nothing_and_logits_that_are_not_finite_have_no_token(
    samplers: list[NativeSampler], sampling: Any
) -> None:
    for vocab in VOCABS:
        logits, states, positions, masks = batch(
            sampling, [{"temperature": t} for t in (0, 0, 1, 1, 1, 0)], vocab, 2.0, 1
        )
        logits[0, vocab - 1], logits[1, 0], logits[2, vocab // 2] = math.nan, -math.inf, math.inf
        masks[3] = 0
        for sampler in samplers:
            chosen = sampler.choose(logits, states, positions, masks)
            assert (chosen[:4] == -1).all()
            assert (chosen[4:] >= 0).all()


def test_the_lowest_id_of_equals_is_taken(samplers: list[NativeSampler], sampling: Any) -> None:
    vocab = VOCABS[-1]
    places = [[0, 5], [vocab - 1], [300, 299, 17_000], [255, 256]]
    logits = np.zeros((len(places), vocab), np.float32)
    for row, equals in enumerate(places):
        logits[row, equals] = 1.0
    states = [SamplingState(sampling(), (), np.zeros(1, np.int32), np.zeros(0, np.int32), vocab) for _ in places]
    for sampler in samplers:
        assert sampler.choose(logits, states, np.zeros(4), None).tolist() == [min(equals) for equals in places]


def test_ids_outside_of_the_vocabulary_are_refused(samplers: list[NativeSampler], sampling: Any) -> None:
    nothing = np.zeros(0, np.int32)
    for state in (
        SamplingState(sampling(logit_bias={50: 1.0}), (), nothing, nothing, 50),
        SamplingState(sampling(min_tokens=1), (-1,), nothing, nothing, 50),
        SamplingState(sampling(presence_penalty=1.0), (), nothing, nothing, 49),
    ):
        with pytest.raises(IndexError, match="vocabulary"):
            samplers[0].choose(np.zeros((1, 50), np.float32), [state], np.zeros(1), None)
