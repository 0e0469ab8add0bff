"""A tiny model directory, and fronts whose scheduler and worker are the scripts in `fakes`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sapwood.managers.front.requests.bodies import struct_from
from sapwood.managers.front.requests.params import score_to_submit, to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest, ScoreRequest
from sapwood.managers.front.supervisor import Supervisor
from sapwood.managers.wire.requests import Submit
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

FAKES = Path(__file__).parent / "fakes"
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such turns') }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that passes for a Hugging Face model: one token per byte, "the", and two control tokens."""
    directory = tmp_path_factory.mktemp("tiny")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate([*alphabet, "th", "the"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", END])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
    return directory


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> tokenizers.Tokenizer:
    """The tokenizer of `tiny_model`, for what is expected."""
    return tokenizers.Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From now on engines have a fake scheduler and a fake worker."""
    _install_fakes(monkeypatch)
    return monkeypatch


@pytest.fixture(scope="module")
def module_fakes() -> Iterator[pytest.MonkeyPatch]:
    """The same for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        _install_fakes(patch)
        yield patch


def _install_fakes(patch: pytest.MonkeyPatch) -> None:
    real = Supervisor._command

    def command(role: str) -> list[str]:
        script = FAKES / f"fake_{role}.py"
        return [sys.executable, str(script)] if script.exists() else real(role)

    patch.setattr(Supervisor, "_command", staticmethod(command))


@pytest.fixture
def request_for() -> Callable[..., Submit]:
    """A generation request for the tiny model: (prompt, **fields of GenerateRequest)."""

    def make(prompt: Any = "abc", **fields: Any) -> Submit:
        if "messages" not in fields:
            fields["prompt"] = prompt
        return to_submit(struct_from(fields, GenerateRequest), vocab_size=300, defaults=OPENAI_DEFAULTS)

    return make


@pytest.fixture
def score_for() -> Callable[..., Submit]:
    """A scoring request for the tiny model: (prompt, continuations, **fields of ScoreRequest)."""

    def make(prompt: Any, continuations: list[Any], **fields: Any) -> Submit:
        fields = {"prompt": prompt, "continuations": continuations, **fields}
        return score_to_submit(struct_from(fields, ScoreRequest), vocab_size=300)

    return make
