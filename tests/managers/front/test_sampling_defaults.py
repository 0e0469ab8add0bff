"""What a request does not say of sampling is the model's recommendation; what it says wins, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.managers.front.requests.bodies import struct_from
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.sampling.recommendation import FALLBACK, OPENAI_DEFAULTS, SamplingDefaults

pytestmark = pytest.mark.fast
ALL = SamplingDefaults("test", temperature=0.6, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.1)


def sampled(defaults: SamplingDefaults, **fields: Any) -> dict[str, Any]:
    made = to_submit(struct_from({"prompt": "hi", **fields}, GenerateRequest), vocab_size=300, defaults=defaults)
    return {name: getattr(made.sampling, name) for name in ALL.values()}


def test_who_says_nothing_gets_all_of_it() -> None:
    assert sampled(ALL) == ALL.values()
    assert sampled(FALLBACK) == {**OPENAI_DEFAULTS.values(), "temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
    assert sampled(OPENAI_DEFAULTS) == OPENAI_DEFAULTS.values()
    assert OPENAI_DEFAULTS.values() == {name: getattr(Sampling(max_tokens=1, seed=0), name) for name in ALL.values()}


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0)]
)
def test_a_field_that_is_named_wins_and_the_others_stay(name: str, value: float) -> None:
    assert sampled(ALL, **{name: value}) == {**ALL.values(), name: value}
    assert sampled(ALL, **{name: None}) == ALL.values()


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"temperature": 1e-6}, {"top_p": 0}])
def test_who_asks_for_the_likeliest_token_gets_it_and_no_recommendation(greedy: dict[str, Any]) -> None:
    assert sampled(ALL, **greedy) == {**OPENAI_DEFAULTS.values(), "temperature": 0.0}
    assert sampled(ALL, repetition_penalty=1.3, **greedy) == {
        **OPENAI_DEFAULTS.values(),
        "temperature": 0.0,
        "repetition_penalty": 1.3,
    }


def test_a_model_that_recommends_greedy_can_be_asked_to_sample() -> None:
    greedy = SamplingDefaults("test", temperature=0.0, repetition_penalty=1.1)
    assert sampled(greedy) == greedy.values()
    assert sampled(greedy, temperature=0.5)["temperature"] == 0.5
    assert sampled(greedy, top_p=0.9)["temperature"] == 0.0


def test_a_top_k_above_the_vocabulary_is_all_of_it() -> None:
    assert sampled(SamplingDefaults("test", top_k=10**6))["top_k"] == 300
    assert sampled(ALL, top_k=-1)["top_k"] == 0
