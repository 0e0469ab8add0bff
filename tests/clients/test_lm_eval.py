"""lm-eval, unmodified: log-likelihoods and generations by `local-completions`, with the tokenizer of the server, and
generations by `local-chat-completions`."""

from __future__ import annotations

from typing import Any

import pytest

api_models = pytest.importorskip("lm_eval.models.openai_completions")


def instance(kind: str, *arguments: Any) -> Any:
    instances = pytest.importorskip("lm_eval.api.instance")
    return instances.Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def completions(server_url: str, **more: Any) -> Any:
    options: Any = {"base_url": f"{server_url}/v1/completions", "model": "smollm2", "num_concurrent": 1, **more}
    return api_models.LocalCompletionsAPI(**options)


def test_loglikelihoods_with_the_servers_tokenizer(server_url: str) -> None:
    model = completions(server_url, tokenizer_backend="remote")
    likely, unlikely = model.loglikelihood(
        [instance("loglikelihood", "The capital of France is", each) for each in (" Paris", " banana")]
    )
    assert likely[0] > unlikely[0]
    assert likely[1], "the greedy continuation"
    assert not unlikely[1]
    [rolling] = model.loglikelihood_rolling([instance("loglikelihood_rolling", "The sky is blue.")])
    assert rolling < 0


def test_generations_with_the_servers_tokenizer(server_url: str) -> None:
    model = completions(server_url, tokenizer_backend="remote")
    [text] = model.generate_until(
        [
            instance(
                "generate_until", "One, two, three,", {"until": ["\n", "six"], "max_gen_toks": 12, "do_sample": False}
            )
        ]
    )
    assert text
    assert "six" not in text


def test_generations_without_a_tokenizer(server_url: str) -> None:
    model = completions(server_url, tokenizer_backend=None, tokenized_requests=False)
    [text] = model.generate_until([instance("generate_until", "One, two,", {"until": ["\n"], "max_gen_toks": 8})])
    assert text


def test_chat_generations(server_url: str) -> None:
    model = api_models.LocalChatCompletion(
        base_url=f"{server_url}/v1/chat/completions", model="smollm2", num_concurrent=1, tokenizer_backend=None
    )
    prompt = model.apply_chat_template([{"role": "user", "content": "Name a colour."}])
    [text] = model.generate_until([instance("generate_until", prompt, {"until": ["\n"], "max_gen_toks": 8})])
    assert text
