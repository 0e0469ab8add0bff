"""What the OpenAI endpoints answer when all is well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapwood.managers.front.generation import Completion
from sapwood.managers.server.openai.bodies import CompletionBody
from sapwood.managers.server.openai.completions import TextAnswers
from sapwood.managers.server.usage import PromptDetails, Usage
from sapwood.managers.wire.answers import Alternative, Finish, TextChunk, TokenLogprob
from sapwood.runtime.wanted import Wanted

USER = [{"role": "user", "content": "hi"}]
TEXT = "Once upon a time, é🚲 the end."
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 10,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def parsed(events: list[str]) -> list[dict[str, Any]]:
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_a_completion_has_the_shape_that_clients_read(client):
    status, answer = await client.post("/v1/completions", {"model": "fake-model", "prompt": "hi", "max_tokens": 100})
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "fake-model"
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == USAGE


async def test_a_chat_completion_has_the_shape_that_clients_read(client):
    status, answer = await client.post("/v1/chat/completions", {"messages": USER})
    assert status == 200
    assert answer["object"] == "chat.completion"
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == USAGE


async def test_defaults_of_max_tokens_are_16_for_completions_and_the_rest_of_the_context_for_chat(client, front):
    await client.post("/v1/completions", {"prompt": "hi"})
    await client.post("/v1/chat/completions", {"messages": USER})
    await client.post("/v1/chat/completions", {"messages": USER, "max_completion_tokens": 5})
    assert [submit.sampling.max_tokens for submit in front.submits] == [16, -1, 5]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_joined_deltas_are_the_whole_text_and_each_choice_finishes_once(client, path):
    body = {"prompt": "hi"} if path == "/v1/completions" else {"messages": USER}
    chunks = parsed(await client.events(path, {**body, "n": 2, "max_tokens": 3}))
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(_text(choice) for choice in choices) == "Once upon a"
        assert [choice["finish_reason"] for choice in choices][-1] == "length"
        assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_chat_stream_opens_each_choice_with_the_role(client):
    chunks = parsed(await client.events("/v1/chat/completions", {"messages": USER}))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_usage_is_streamed_only_on_request_and_then_last_and_true(client, path):
    body = {"prompt": "hi"} if path == "/v1/completions" else {"messages": USER}
    without = parsed(await client.events(path, body))
    assert all("usage" not in chunk for chunk in without)
    chunks = parsed(await client.events(path, {**body, "stream_options": {"include_usage": True}}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == (await client.post(path, body))[1]["usage"] == USAGE
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_give_choices_in_order_of_prompt_and_sample(client, front, stream):
    body = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 2}
    if stream:
        chunks = parsed(await client.events("/v1/completions", {**body, "stream_options": {"include_usage": True}}))
        usage = chunks[-1]["usage"]
        texts = dict.fromkeys(range(6), "")
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        assert list(texts.values()) == ["Once upon"] * 6
    else:
        _, answer = await client.post("/v1/completions", body)
        usage = answer["usage"]
        assert [(each["index"], each["text"]) for each in answer["choices"]] == [(i, "Once upon") for i in range(6)]
    assert [submit.prompt for submit in front.submits] == [["a"], ["b"], ["c"]]
    assert usage["prompt_tokens"] == 21, "a prompt counts once, however many samples it has"
    assert usage["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("prompt", "runs"),
    [("x", [["x"]]), (["x", "y"], [["x"], ["y"]]), ([1, 2], [[[1, 2]]]), ([[1, 2], [3]], [[[1, 2]], [[3]]])],
)
async def test_prompts_may_be_text_or_token_ids_and_lists_of_either(client, front, prompt, runs):
    status, _ = await client.post("/v1/completions", {"prompt": prompt})
    assert status == 200
    assert [submit.prompt for submit in front.submits] == runs


async def test_completion_logprobs_are_parallel_lists(client):
    body = {"prompt": "hi", "max_tokens": 2, "logprobs": 2}
    _, answer = await client.post("/v1/completions", body)
    whole = answer["choices"][0]["logprobs"]
    assert whole["tokens"] == ["Once", " upon"]
    assert whole["token_logprobs"] == [-0.5, -0.5]
    assert whole["top_logprobs"][1] == {" upon0": -0.5, " upon1": -1.5}
    assert whole["text_offset"] == [0, 4]
    chunks = parsed(await client.events("/v1/completions", body))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in whole.items():
        assert [value for part in parts for value in part[name]] == values


def test_text_offsets_count_a_character_of_several_tokens_once():
    def tokens(*pieces: bytes) -> list[TokenLogprob]:
        return [TokenLogprob(i, piece.decode("utf-8", "replace"), piece, -0.5, []) for i, piece in enumerate(pieces)]

    prompt = tokens(b"a", b"\xf0\x9f", b"\x9a\xb2b", b"\xc5")
    completion = tokens(b"\xf0\x9f\x9a", b"\xb2", b"c", b"\xff", b"d")
    text, offsets = "a🚲b\ufffd🚲c\ufffdd", [0, 1, 1, 3, 4, 4, 5, 6, 7]
    body = CompletionBody(prompt="a", logprobs=0, echo=True)
    end = Finish("length")
    joined = Completion(
        index=0, text=text, token_ids=[], finish=end, logprobs=completion, prompt_logprobs=prompt,
        prompt_tokens=4, cached_tokens=0, completion_tokens=5,
    )  # fmt: skip
    whole = TextAnswers(body, "m", "id").whole([[joined]], Usage(0, 0, 0, PromptDetails(0)))
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.text_offset == offsets
    answers = TextAnswers(body, "m", "id")
    streamed = []
    for i, token in enumerate(completion):
        chunk = TextChunk("id", 0, "", [0], 4, 0, i, [token], None if i else prompt, None)
        [event] = answers.events(0, chunk)
        streamed += json.loads(event)["choices"][0]["logprobs"]["text_offset"]
    assert streamed == offsets


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_covers_the_prompt_whose_first_token_has_none(client, front, stream):
    body = {"prompt": "hi", "max_tokens": 0, "logprobs": 0, "echo": True}
    if stream:
        [chunk] = parsed(await client.events("/v1/completions", body))
        choice = chunk["choices"][0]
    else:
        choice = (await client.post("/v1/completions", body))[1]["choices"][0]
    assert choice["text"] == "<p>prompt"
    assert choice["logprobs"]["tokens"] == ["<p>", "prompt"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["logprobs"]["top_logprobs"] == [None, {}]
    assert choice["logprobs"]["text_offset"] == [0, 3]
    assert front.submits[0].wanted == Wanted("logprobs", 0)


@pytest.mark.parametrize("top", [None, 0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs_have_one_entry_per_token_whatever_top_logprobs_says(client, top, stream):
    body = {"messages": USER, "logprobs": True, "max_tokens": 3}
    if top is not None:
        body["top_logprobs"] = top
    if stream:
        chunks = parsed(await client.events("/v1/chat/completions", body))
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        content = [entry for part in parts if part for entry in part["content"]]
    else:
        content = (await client.post("/v1/chat/completions", body))[1]["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["Once", " upon", " a"]
    assert [entry["bytes"] for entry in content] == [list(text.encode()) for text in ("Once", " upon", " a")]
    assert [len(entry["top_logprobs"]) for entry in content] == [top or 0] * 3
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] + "0" for entry in content if top)


async def test_logprobs_that_were_wanted_are_lists_even_without_tokens(client):
    _, answer = await client.post("/v1/chat/completions", {"messages": USER, "logprobs": True, "max_tokens": 0})
    assert answer["choices"][0]["logprobs"]["content"] == []


async def test_every_field_reaches_the_engine(client, front):
    body = {
        "temperature": 0.5,
        "top_p": 0.9,
        "n": 2,
        "seed": 7,
        "stop": ["x", "y"],
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logit_bias": {"5": -3},
        "max_tokens": 9,
        "user": "someone",
        "top_k": 4,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "stop_token_ids": [3],
        "include_stop": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "allow_control_tokens": True,
        "cache_salt": "tenant",
        "priority": 3,
        "request_id": "mine",
    }
    for path, own in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": USER})):
        status, answer = await client.post(path, {**own, **body})
        assert status == 200
        assert answer["id"] == "mine"
        submit = front.submits[-1]
        sampling = submit.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 4, 0.05)
        assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.1, 0.2, 1.1)
        assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (7, 9, 2)
        assert (sampling.logit_bias, sampling.stop_token_ids, sampling.ignore_eos) == ({5: -3.0}, [3], True)
        assert (submit.n, submit.stop, submit.include_stop) == (2, ["x", "y"], True)
        assert (submit.skip_special_tokens, submit.allow_control_tokens) == (False, True)
        assert (submit.namespace, submit.priority, submit.request_id) == ("tenant", 3, "mine")


async def test_null_means_absent_for_every_optional_field(client, front):
    from sapwood.managers.server.openai.bodies import ChatBody, CompletionBody

    for path, struct, own in (
        ("/v1/completions", CompletionBody, {"prompt": "hi"}),
        ("/v1/chat/completions", ChatBody, {"messages": USER}),
    ):
        nulls = dict.fromkeys(struct.__struct_fields__)
        status, _ = await client.post(path, {**nulls, **own})
        assert status == 200


async def test_chat_template_fields_reach_the_template(client, front):
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {
        "messages": [*USER, {"role": "assistant", "content": "Well"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "chat_template_kwargs": {"thinking": False},
        "tools": tools,
        "tool_choice": "none",
    }
    assert (await client.post("/v1/chat/completions", body))[0] == 200
    chat = front.submits[0].chat
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    assert (chat.template_kwargs, chat.tools) == ({"thinking": False}, tools)


TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "assistant",
    [
        {"content": None, "tool_calls": [TOOL_CALL]},
        {"tool_calls": [TOOL_CALL]},
        {"content": "", "tool_calls": [TOOL_CALL]},
        {"content": [], "tool_calls": [TOOL_CALL]},
        {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "tool_calls": [TOOL_CALL]},
        {"content": "no call", "tool_calls": []},
        {"content": "as the openai package dumps it", "refusal": None, "audio": None, "function_call": None},
    ],
)
async def test_a_tool_agents_history_is_accepted_in_every_form(client, assistant):
    history = [*USER, {"role": "assistant", **assistant}, {"role": "tool", "tool_call_id": "c1", "content": "4"}, *USER]
    status, answer = await client.post("/v1/chat/completions", {"messages": history})
    assert status == 200, answer


async def test_supported_values_of_openais_other_fields_are_accepted(client):
    body = {
        "messages": USER,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
        "tools": [],
        "tool_choice": "none",
    }
    status, answer = await client.post("/v1/chat/completions", body)
    assert status == 200, answer
    assert (await client.post("/v1/completions", {"prompt": "x", "best_of": 1, "suffix": ""}))[0] == 200


async def test_answers_name_their_request_in_a_header_and_are_not_cached(client):
    async with client.session.post(client.url + "/v1/completions", json={"prompt": "x"}) as response:
        assert response.headers["X-Request-Id"] == (await response.json())["id"]
    async with client.session.post(client.url + "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        assert response.headers["X-Request-Id"].startswith("cmpl-")
        assert response.headers["Cache-Control"] == "no-cache"


async def test_models_are_listed_and_found_by_name(client):
    _, listed = await client.get("/v1/models")
    assert listed["object"] == "list"
    assert [(each["id"], each["object"], each["max_model_len"]) for each in listed["data"]] == [
        ("fake-model", "model", 64)
    ]
    assert (await client.get("/v1/models/fake-model")) == (200, listed["data"][0])
    status, answer = await client.get("/v1/models/org/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def _text(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def test_tokens_with_one_text_are_told_apart_in_top_logprobs():
    """vllm-project/vllm#44504: as many entries as were asked for, whole and streamed."""
    top = [
        Alternative(5, " a", b" a", -0.5),
        Alternative(9, " a", b" a", -1.0),
        Alternative(7, "\ufffd", b"\xf0", -2.0),
        Alternative(3, " a", b" a", -3.0),
        Alternative(4, "\ufffd", b"\xf0", -4.0),
    ]
    expected = {" a": -0.5, "token_id:9": -1.0, "bytes:\\xf0": -2.0, "token_id:3": -3.0, "token_id:4": -4.0}
    token = TokenLogprob(9, " a", b" a", -1.0, top)
    body = CompletionBody(prompt="x", logprobs=5)
    joined = Completion(
        index=0, text=" a", token_ids=[9], finish=Finish("length"), logprobs=[token], prompt_logprobs=None,
        prompt_tokens=1, cached_tokens=0, completion_tokens=1,
    )  # fmt: skip
    whole = TextAnswers(body, "m", "id").whole([[joined]], Usage(0, 0, 0, PromptDetails(0))).choices[0].logprobs
    assert whole is not None
    assert whole.top_logprobs == [expected]
    assert whole.tokens == [" a"]
    chunk = TextChunk("id", 0, " a", [9], 1, 0, 1, [token], None, Finish("length"))
    [event] = TextAnswers(body, "m", "id").events(0, chunk)
    assert json.loads(event)["choices"][0]["logprobs"]["top_logprobs"] == [expected]
