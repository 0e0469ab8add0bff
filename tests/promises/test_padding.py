"""A model with embeddings for ids that no token has, as many have: nobody can ask for those, and none comes out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood import Engine
from sapwood.managers.wire.errors import InvalidRequest

TOKENS = 250  # of 256 ids


@pytest.fixture(scope="module")
def padded(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory, test_modes: dict[str, Any]) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("padded")
    for file in tiny_path.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {text: token_id for text, token_id in vocab.items() if token_id < TOKENS}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [TOKENS - 1, TOKENS + 1]}))
    with Engine(path, kv_tokens=2048, **test_modes) as engine:
        yield engine


@pytest.mark.parametrize(
    ("field", "prompt", "asked"),
    [
        ("logit_bias", "abc", {"logit_bias": {TOKENS: 100.0}}),
        ("stop_token_ids", "abc", {"stop_token_ids": [3, TOKENS]}),
        ("prompt", [[5, TOKENS, 7]], {}),
    ],
)
def test_ids_without_a_token_are_refused_by_the_field(
    padded: Engine, field: str, prompt: Any, asked: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=rf"{field}.* token id {TOKENS}; this model's ids are 0 to {TOKENS - 1}"):
        padded.generate(prompt, max_tokens=4, **asked)
    with pytest.raises(InvalidRequest, match=str(TOKENS)):
        padded.score("abc", [[TOKENS]])


def test_none_of_them_is_sampled(padded: Engine) -> None:
    answer = padded.generate("abc", max_tokens=400, temperature=100.0, seed=1, logprobs=20, ignore_eos=True)
    assert max(answer.token_ids) < TOKENS
    assert len(set(answer.token_ids)) > TOKENS // 2
    assert all(top.token_id < TOKENS for each in answer.logprobs or [] for top in each.top)
    assert padded.generate("abc", max_tokens=3, logit_bias={TOKENS - 2: 100.0}).token_ids == [TOKENS - 2] * 3


def test_a_grammar_is_matched_all_the_same(padded: Engine) -> None:
    answer = padded.generate("abc", max_tokens=10, regex="[a-c]{3}", temperature=100.0, seed=2)
    assert re.fullmatch("[a-c]{3}", answer.text)
