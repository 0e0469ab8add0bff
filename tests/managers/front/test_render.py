"""Conversations as prompts (`Engine.render`, POST /render), and continuations scored without a prompt."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sapwood import Engine
from sapwood.managers.tokenizer.prompt_encoding import PromptEncoder
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.requests import Submit
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from sapwood.runtime.wanted import Wanted

CHAT = [{"role": "user", "content": "the <|end|>"}, {"role": "assistant", "content": "the"}]


@pytest.fixture(scope="module")
def engine(module_fakes: pytest.MonkeyPatch, tiny_model: Path) -> Iterator[Engine]:
    with Engine(tiny_model) as engine:
        yield engine


def test_a_rendering_has_control_tokens_only_where_the_template_puts_them(
    engine: Engine, tiny: tokenizers.Tokenizer
) -> None:
    start, end = (tiny.token_to_id(name) for name in ("<|start|>", "<|end|>"))
    rendering = engine.render(CHAT, add_generation_prompt=True)
    assert rendering.prompt == [[start], "user\nthe <|end|>", [end, start], "assistant\nthe", [end, start]]
    assert rendering.text == "<|start|>user\nthe <|end|><|end|><|start|>assistant\nthe<|end|><|start|>"
    assert engine.render(CHAT, add_generation_prompt=False).prompt[-1] == [end]
    assert engine.render(CHAT, continue_final_message=True).prompt[-1] == "assistant\nthe"
    allowed = engine.render(CHAT, add_generation_prompt=True, allow_control_tokens=True)
    assert allowed.prompt[2] == [end, end, start]


def test_a_rendering_is_a_prompt_with_the_conversations_own_tokens(engine: Engine) -> None:
    rendering = engine.render(CHAT)
    (by_prompt,) = engine.generate([rendering.prompt], max_tokens=0, prompt_logprobs=0)
    by_messages = engine.generate(messages=CHAT, max_tokens=0, prompt_logprobs=0)
    ids = [token.token_id for token in by_messages.prompt_logprobs or []]
    assert ids
    assert [token.token_id for token in by_prompt.prompt_logprobs or []] == ids


@pytest.mark.parametrize(
    ("messages", "fields", "sentence"),
    [
        ([], {}, "messages is empty"),
        ([{"role": "king", "content": "x"}], {}, r"messages\[0\].role must be one of"),
        ([{"role": "user", "content": "refuse"}], {}, "no such turns"),
        (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, "excludes add_generation_prompt"),
        (CHAT, {"temperature": 1}, "Unknown field 'temperature'"),
    ],
)
def test_what_cannot_be_rendered_is_refused(
    engine: Engine, messages: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        engine.render(messages, **fields)


async def test_rendering_in_an_event_loop(engine: Engine) -> None:
    assert await engine.arender(CHAT) == engine.render(CHAT)


def test_the_server_renders(server_url: str) -> None:
    def post(body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{server_url}/render", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    rendering = post({"messages": CHAT, "model": "smollm2", "add_generation_prompt": False})
    assert re.search(r"<\|im_start\|>assistant\nthe<\|im_end\|>\n$", rendering["text"])
    assert [run for run in rendering["prompt"] if isinstance(run, list)] == [[1], [2]] * 3
    with pytest.raises(urllib.error.HTTPError) as caught:
        post({"messages": CHAT, "mesages": 1})
    assert caught.value.code == 400
    assert "mesages" in json.load(caught.value)["error"]["message"]


@pytest.mark.parametrize("continuation", ["the", [5, 6]])
def test_without_a_prompt_continuations_stand_at_the_start_of_a_text(
    tiny_model: Path, tiny: tokenizers.Tokenizer, score_for: Callable[..., Submit], continuation: Any
) -> None:
    encoded = PromptEncoder(load_tokenizer(tiny_model), None).encode(score_for("", [continuation]), 64)
    ids = tiny.encode(continuation).ids if isinstance(continuation, str) else continuation
    [sequence] = encoded.sequences
    assert sequence.token_ids == [tiny.token_to_id("<|end|>"), *ids]
    assert sequence.wanted == Wanted("logprobs", 1)
