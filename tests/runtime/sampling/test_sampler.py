"""Sampling follows its definitions row by row, whatever else is in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.kernels.sampling import load_sampler
from sapwood.runtime.sampling import sampler
from sapwood.runtime.sampling.sampler import NOT_FINITE, SampledTokens, SamplingState, token_logprobs
from sapwood.runtime.sampling.sampling_state import uniform

VOCAB = 50
Make = Callable[..., SamplingState]
Sample = Callable[..., SampledTokens]


@pytest.fixture(scope="session", params=["torch", "cpu"])
def sample(request: pytest.FixtureRequest, one_thread: None) -> Sample:
    """`sampler.sample` with torch's operations, and with the kernels."""
    if request.param == "torch":
        return sampler.sample
    kernels = load_sampler(1)
    assert kernels is not None, "the kernels are not built"
    return partial(sampler.sample, kernels=kernels)


@pytest.fixture(scope="session")
def state(sampling: Any, one_thread: None) -> Make:
    def make(
        *, vocab: int = VOCAB, stop: tuple[int, ...] = (), prompt: Any = (), output: Any = (), **options: Any
    ) -> Any:
        prompt_ids, output_ids = np.array(list(prompt), np.int32), np.array(list(output), np.int32)
        return SamplingState(sampling(**options), stop, prompt_ids, output_ids, vocab)

    return make


def bitmask(allowed: Sequence[int] | None, vocab: int = VOCAB) -> np.ndarray:
    """int32 [ceil(vocab / 32)]; None allows every token."""
    words = (
        np.zeros(-(-vocab // 32), np.uint32) if allowed is not None else np.full(-(-vocab // 32), 2**32 - 1, np.uint32)
    )
    for token in allowed or ():
        words[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


def naive_weights(
    logits: np.ndarray,
    options: Any,
    stop: list[int],
    prompt: list[int],
    output: list[int],
    allowed: Sequence[int] | None = None,
) -> np.ndarray:
    """The distribution a row is drawn from, [vocab], written token by token; one-hot for greedy."""
    x = logits.astype(np.float64).copy()
    for token in range(len(x)):
        count = output.count(token)
        if token in prompt or count:
            x[token] = x[token] / options.repetition_penalty if x[token] > 0 else x[token] * options.repetition_penalty
        if count:
            x[token] -= options.presence_penalty + count * options.frequency_penalty
        x[token] += options.logit_bias.get(token, 0.0)
        if (token in stop and len(output) < options.min_tokens) or (allowed is not None and token not in allowed):
            x[token] = -math.inf
    if options.temperature == 0:
        return np.eye(len(x))[int(np.argmax(x))]
    p = np.exp((x - x.max()) / options.temperature)
    p /= p.sum()
    if options.top_k:
        p[p < np.sort(p)[::-1][min(options.top_k, len(p)) - 1]] = 0
        p /= p.sum()
    if options.top_p < 1:
        total, kept = 0.0, 0.0
        for value in np.sort(p)[::-1]:
            total, kept = total + value, value
            if total >= options.top_p:
                break
        cut = p < kept
    else:
        cut = p < 0
    cut |= p < options.min_p * p.max()
    p[cut] = 0
    return p / p.sum()


option_sets = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.2, 1.0, 1.7]),
        "seed": st.integers(0, 2**64 - 1),
        "top_k": st.sampled_from([0, 1, 3, 20, 50, 1000]),
        "top_p": st.sampled_from([1.0, 0.95, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.4]),
        "presence_penalty": st.sampled_from([0.0, -2.0, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, -2.0, 2.0]),
        "logit_bias": st.sampled_from([{}, {3: 100.0}, {4: -100.0, 0: 1.5}]),
        "min_tokens": st.sampled_from([0, 3, 10]),
        "logprobs": st.sampled_from([None, 0, 4]),
    }
)
allowed_sets = st.none() | st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=20, unique=True)
histories = st.tuples(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=10), st.lists(st.integers(0, VOCAB - 1), max_size=10)
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(option_sets, histories, allowed_sets), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_each_row_is_drawn_from_its_own_distribution_at_its_own_point(
    sampling: Any, sample: Sample, state: Make, rows: list[Any], seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (len(rows), VOCAB)).astype(np.float32)
    states = [state(stop=(1, 2), prompt=prompt, output=output, **options) for options, (prompt, output), _ in rows]
    positions = np.array([len(prompt) + len(output) for _, (prompt, output), _ in rows])
    before = torch.from_numpy(logits.copy())
    choice = sample(before, states, positions, np.stack([bitmask(allowed) for _, _, allowed in rows]))
    assert np.array_equal(before.numpy(), logits), "the model's logits are left as they were"
    wanted = {i: one for i, one in enumerate(choice.logprobs) if one is not None}
    for i, (options, (prompt, output), allowed) in enumerate(rows):
        weights = naive_weights(logits[i], sampling(**options), [1, 2], prompt, output, allowed)
        point = uniform(np.array([options["seed"]], np.uint64), positions[i : i + 1])[0]
        cumulative = np.cumsum(weights)
        token = int(choice.token_ids[i])
        assert cumulative[token] - weights[token] - 1e-5 <= point * cumulative[-1] <= cumulative[token] + 1e-5
        assert weights[token] > 0
        assert (i in wanted) == (options["logprobs"] is not None)
        if i in wanted:
            raw = torch.log_softmax(torch.from_numpy(logits[i]).double(), -1)
            assert wanted[i].logprob == pytest.approx(float(raw[token]), abs=1e-4)
            assert wanted[i].top.ids == torch.argsort(raw, descending=True)[: options["logprobs"]].tolist()
            np.testing.assert_allclose(wanted[i].top.logprobs, raw[wanted[i].top.ids], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(option_sets, histories), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_a_row_alone_gets_what_it_gets_in_company(sample: Sample, state: Make, rows: list[Any], seed: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (len(rows), VOCAB)).astype(np.float32))

    def fresh(i: int) -> SamplingState:
        options, (prompt, output) = rows[i]
        return state(stop=(1,), prompt=prompt, output=output, **options)

    positions = np.arange(10, 10 + len(rows))
    together = sample(logits.clone(), [fresh(i) for i in range(len(rows))], positions)
    for i in range(len(rows)):
        alone = sample(logits[i : i + 1].clone(), [fresh(i)], positions[i : i + 1])
        assert alone.token_ids[0] == together.token_ids[i]
        assert alone.logprobs == [together.logprobs[i]]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 8},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.0, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_frequencies_over_positions_are_the_probabilities(
    sampling: Any, sample: Sample, state: Make, options: dict[str, Any]
) -> None:
    draws = 8000
    logits = np.random.default_rng(5).normal(0, 1.5, VOCAB).astype(np.float32)
    weights = naive_weights(logits, sampling(**options), [], [], [])
    row = state(seed=1234, **options)
    batch = torch.from_numpy(logits).expand(100, -1)
    counts = np.zeros(VOCAB)
    for start in range(0, draws, 100):
        counts += np.bincount(sample(batch, [row] * 100, np.arange(start, start + 100)).token_ids, minlength=VOCAB)
    expected = weights * draws
    assert not counts[expected == 0].any()
    likely = expected > 5
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    degrees = likely.sum() - 1
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_the_hash_is_even_and_uncorrelated_over_seeds_and_positions() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200), indexing="ij")
    values = uniform(seeds, positions)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, 100, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 99 + 5 * math.sqrt(198)
    for one, other in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03
    assert len(np.unique(values)) == values.size


def test_a_seed_and_position_always_give_the_same_number() -> None:
    """Pinned: a change of the hash would change every seeded answer."""
    values = uniform(np.array([0, 1, 2**64 - 1], np.uint64), np.array([0, 5, 8191]))
    np.testing.assert_allclose(values, [0.6524484863740322, 0.6924455848746632, 0.3359654836780077], rtol=0, atol=1e-15)


def test_top_p_looks_past_the_first_tokens_where_it_must(sample: Sample, state: Make) -> None:
    vocab = 3000
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 0.1, (2, vocab)).astype(np.float32))
    logits[1, 7] = 9.0
    rows = [state(vocab=vocab, temperature=1.0, top_p=0.9, seed=3) for _ in range(2)]
    drawn = np.array([sample(logits, rows, np.array([i, i])).token_ids for i in range(300)])
    assert len(set(drawn[:, 0])) > 200
    assert drawn[:, 1].tolist().count(7) > 150
    kept = np.sort(torch.softmax(logits[0].double(), -1).numpy())[::-1]
    size = int((np.cumsum(kept) < 0.9).sum()) + 1
    allowed = set(torch.argsort(logits[0], descending=True)[:size].tolist())
    assert set(drawn[:, 0].tolist()) <= allowed


def test_equally_likely_tokens_at_the_border_are_all_kept(sample: Sample, state: Make) -> None:
    logits = torch.zeros(1, VOCAB)
    for options in ({"top_k": 3}, {"top_p": 0.1}, {"min_p": 1.0}):
        row = state(temperature=1.0, **options)
        assert len({int(sample(logits, [row], np.array([i])).token_ids[0]) for i in range(600)}) == VOCAB


def test_greedy_takes_the_lowest_of_equal_ids(sample: Sample, state: Make) -> None:
    logits = torch.zeros(2, 5000)
    logits[:, [4321, 17, 900]] = 2.0
    rows = [state(vocab=5000), state(vocab=5000, logit_bias={3: 0.5})]
    assert sample(logits, rows, np.array([0, 0])).token_ids.tolist() == [17, 17]


def test_stop_ids_are_held_back_until_min_tokens_are_generated(sample: Sample, state: Make) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [1, 2]] = torch.tensor([9.0, 8.0])
    row = state(stop=(1, 2), min_tokens=3, output=[5])
    tokens = [int(sample(logits, [row], np.array([i])).token_ids[0]) for i in range(3)]
    assert tokens == [0, 0, 1]
    assert row.generated == 4


def test_penalties_follow_the_tokens_as_they_are_generated(sample: Sample, state: Make) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :4] = torch.tensor([3.0, 2.9, 2.8, 2.7])
    frequency = state(frequency_penalty=0.16)
    tokens = [int(sample(logits, [frequency], np.array([i])).token_ids[0]) for i in range(6)]
    assert tokens == [0, 1, 0, 2, 1, 3]
    presence = state(presence_penalty=2.0, prompt=[0, 1])
    tokens = [int(sample(logits, [presence], np.array([i])).token_ids[0]) for i in range(5)]
    assert tokens == [0, 1, 2, 3, 0], "the prompt does not count, and a second time costs no more than the first"
    repetition = state(repetition_penalty=2.0, prompt=[0, 1])
    assert sample(logits, [repetition], np.array([0])).token_ids[0] == 2


def test_a_bitmask_forbids_whatever_the_temperature_and_leaves_the_logprobs(sample: Sample, state: Make) -> None:
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (3, VOCAB)).astype(np.float32))
    masks = np.stack([bitmask([7, 33, 49]), bitmask(None), bitmask([])])
    for options in ({}, {"temperature": 1.0}, {"temperature": 3.0, "top_k": 40, "top_p": 0.99}):
        rows = [state(logprobs=1, **options) for _ in range(3)]
        plain = [state(logprobs=1, **options) for _ in range(3)]
        drawn = [sample(logits, rows, np.full(3, i), masks).token_ids for i in range(100)]
        expected = [sample(logits, plain, np.full(3, i)) for i in range(100)]
        tokens = np.array(drawn)
        assert set(tokens[:, 0].tolist()) <= {7, 33, 49}
        assert options == {} or len(set(tokens[:, 0].tolist())) == 3
        assert tokens[:, 1].tolist() == [int(one.token_ids[1]) for one in expected]
        assert (tokens[:, 2] == NOT_FINITE).all()
        choice = sample(logits, rows, np.zeros(3), masks)
        own = torch.log_softmax(logits, -1)[0]
        chosen = choice.logprobs[0]
        assert chosen is not None
        assert chosen.logprob == own[int(choice.token_ids[0])]
        assert chosen.top.ids == [int(own.argmax())]


def test_arrays_that_do_not_fit_are_refused(sample: Sample, state: Make) -> None:
    logits, rows = torch.zeros(2, VOCAB), [state(), state()]
    for masks in (np.zeros((2, 3), np.int32), np.zeros((1, 2), np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError, match="bitmasks"):
            sample(logits, rows, np.zeros(2), masks)
    with pytest.raises(ValueError, match="2 states and 1 positions for 2 rows"):
        sample(logits, rows, np.zeros(1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.5, "logprobs": 2}])
def test_logits_that_are_not_finite_fail_their_row_alone(
    sample: Sample, state: Make, bad: float, options: dict[str, Any]
) -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (3, VOCAB)).astype(np.float32))
    expected = sample(logits, [state(**options) for _ in range(3)], np.arange(3))
    logits[1, 30] = bad
    states = [state(**options) for _ in range(3)]
    choice = sample(logits, states, np.arange(3))
    assert choice.token_ids[1] == NOT_FINITE
    assert choice.token_ids[[0, 2]].tolist() == expected.token_ids[[0, 2]].tolist()
    wanted = "logprobs" in options
    assert [one is not None for one in choice.logprobs] == [wanted, False, wanted]
    assert states[1].generated == 0


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "logprobs": 2}])
def test_a_row_with_nothing_to_choose_from_fails_alone(sample: Sample, state: Make, options: dict[str, Any]) -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (2, VOCAB)).astype(np.float32))
    expected = sample(logits, [state(**options) for _ in range(2)], np.arange(2))
    states = [state(**options), state(stop=tuple(range(VOCAB)), min_tokens=1, **options)]
    choice = sample(logits, states, np.arange(2))
    assert choice.token_ids.tolist() == [expected.token_ids[0], NOT_FINITE]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-9},
        {"temperature": 1e6},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 2.0, "repetition_penalty": 1e-3, "presence_penalty": 2.0, "frequency_penalty": -2.0},
        {"temperature": 1.0, "logit_bias": dict.fromkeys(range(VOCAB), -100.0)},
        {"temperature": 1.0, "logit_bias": {0: 100.0}, "min_p": 1.0, "top_k": 1},
        {"temperature": 1.0, "seed": 2**64 - 1, "logprobs": VOCAB + 10},
    ],
)
def test_options_at_their_limits_give_tokens_and_finite_logprobs(
    sample: Sample, state: Make, options: dict[str, Any]
) -> None:
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 10, (1, VOCAB)).astype(np.float32))
    row = state(prompt=[1, 2], output=[3], **{"logprobs": 5, **options})
    for i in range(20):
        choice = sample(logits, [row], np.array([i]))
        assert 0 <= choice.token_ids[0] < VOCAB
        chosen = choice.logprobs[0]
        assert chosen is not None
        assert math.isfinite(chosen.logprob)
        assert np.isfinite(chosen.top.logprobs).all()


def test_logprobs_of_masked_out_tokens_stay_finite(sample: Sample, state: Make) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 1] = 20.0
    row = state(stop=(1,), min_tokens=5, logprobs=VOCAB, temperature=1.0, top_k=2)
    choice = sample(logits, [row], np.array([0]))
    chosen = choice.logprobs[0]
    assert chosen is not None
    assert chosen.top.ids[0] == 1
    assert np.isfinite(chosen.top.logprobs).all()


def test_each_row_gets_as_many_alternatives_as_it_wants() -> None:
    logits = torch.randn(3, VOCAB)
    own, top = token_logprobs(logits, np.array([4, 5, 6]), [0, 3, 7])
    assert [len(tokens.ids) for tokens in top] == [0, 3, 7]
    np.testing.assert_allclose(own, torch.log_softmax(logits, -1)[[0, 1, 2], [4, 5, 6]], atol=1e-6)
