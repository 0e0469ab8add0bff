"""A model with embeddings for more ids than there are tokens: the others are never sampled, and have no probability."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.runtime.wanted import Wanted
from tests.runtime.executors import executor_of

TOKENS = 60  # of 97 ids
PROMPT = [5, 17, 59, 3, 8, 21]
Drive = Callable[..., Any]


@pytest.fixture(params=["cpu", "torch", "torch for sampling too"])
def padded(request: pytest.FixtureRequest, tiny_llama: Path, drive_torch: Drive, drive_runner: Drive) -> Any:
    """A driver that knows of the padding: with each backend, each sampler."""
    if request.param == "torch for sampling too":
        return drive_torch(tiny_llama, vocab_size=TOKENS)
    options = {"attention_backend": request.param, "max_running": 8, "kv_tokens": 4096}
    return drive_runner(executor_of(tiny_llama, vocab_size=TOKENS, **options))


def test_padding_is_never_sampled(padded: Any) -> None:
    [completion] = padded.generate([PROMPT], 150, temperature=50.0, seed=7)
    assert max(completion) < TOKENS
    assert len(set(completion)) > TOKENS // 2, "every token was about as likely as any other"
    [completion] = padded.generate([PROMPT], 50, temperature=50.0, seed=7, frequency_penalty=-2.0, top_k=90)
    assert max(completion) < TOKENS


def test_probabilities_are_those_among_the_tokens(padded: Any, tiny_llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(tiny_llama)(torch.tensor([PROMPT])).logits[0, :, :TOKENS]
    expected = torch.log_softmax(logits.float(), -1).numpy()
    padded.generate([PROMPT], 1, logprobs=TOKENS)
    top = padded.sampled[0][0].top
    assert sorted(top.ids) == list(range(TOKENS))
    np.testing.assert_allclose(top.logprobs, expected[-1][top.ids], atol=1e-4)
    padded.open(0, PROMPT, wanted=Wanted("logprobs", 1, TOKENS))
    [run] = padded.prefill(0, PROMPT).scored
    padded.close(0)
    own = [expected[i, token] for i, token in enumerate(PROMPT[1:])]
    np.testing.assert_allclose(run.logprobs, own, atol=1e-4)
    assert all(sorted(each.ids) == list(range(TOKENS)) for each in run.top)


def test_without_padding_nothing_changes(drive: Drive, tiny_llama: Path) -> None:
    """Bit for bit; nor where the tokenizer has more ids than the model, which the front refuses."""
    found: list[Any] = []
    for vocab_size in (None, 97, 200):
        driver = drive(tiny_llama, vocab_size=vocab_size)
        assert driver.executor.vocab_size == 97
        found.append([driver.generate([PROMPT], 9, logprobs=3, temperature=1.0, seed=3), driver.sampled])
    assert found[0] == found[1] == found[2]
