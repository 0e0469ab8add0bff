"""/generate in SGLang's form: its words, its answers, its streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.fast
TEXT = "Once upon a time, é🚲 the end."


async def test_one_text_gives_one_object_of_that_form(client, front):
    params = {
        "max_new_tokens": 3,
        "temperature": 0.5,
        "stop": ["x"],
        "sampling_seed": 4,
        "top_k": -1,
        "stop_regex": None,
    }
    status, answer = await client.post("/generate", {"text": "hi", "sampling_params": params, "rid": "me"})
    assert status == 200, answer
    assert list(answer) == ["text", "output_ids", "meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("Once upon a", [100, 101, 102])
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    assert meta == {
        "id": "me",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 3,
    }
    sampling = front.submits[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.top_k) == (3, 0.5, 4, 0)
    assert front.submits[-1].stop == ["x"]


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ({"input_ids": [1, 2]}, [[[1, 2]]]),
        ({"input_ids": [[1, 2], [3]]}, [[[1, 2]], [[3]]]),
        ({"text": ["a", "b"]}, [["a"], ["b"]]),
        ({"text": ["a"]}, [["a"]]),
    ],
)
async def test_a_list_is_answered_by_a_list(client, front, body, prompts):
    status, answer = await client.post("/generate", body)
    assert status == 200, answer
    assert [each.prompt for each in front.submits] == prompts
    is_list = isinstance(next(iter(body.values()))[0], list | str)
    answers = answer if is_list else [answer]
    assert isinstance(answer, list) == is_list
    assert [each["meta_info"]["finish_reason"] for each in answers] == [{"type": "stop", "matched": None}] * len(
        prompts
    )
    assert {each["text"] for each in answers} == {TEXT}


async def test_samples_and_items_of_a_batch_have_an_order(client):
    body = {"text": ["a", "b"], "rid": "r", "sampling_params": {"n": 2, "max_new_tokens": 1}}
    status, answers = await client.post("/generate", body)
    assert (status, [each["meta_info"]["id"] for each in answers]) == (200, ["r_0", "r_1", "r_0", "r_1"])


async def test_a_stream_has_the_text_so_far(client):
    events = await client.events("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3}})
    assert events[-1] == "[DONE]"
    shown = [json.loads(event) for event in events[:-1]]
    assert [each["text"] for each in shown] == ["Once", "Once upon", "Once upon a"]
    assert [each["output_ids"] for each in shown] == [[100], [100, 101], [100, 101, 102]]
    assert [each["meta_info"]["finish_reason"] for each in shown] == [None, None, {"type": "length", "length": 3}]
    assert all("index" not in each for each in shown)
    events = await client.events("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1}})
    assert {json.loads(event)["index"] for event in events[:-1]} == {0, 1}


async def test_logprobs(client):
    body = {"text": "a", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    _, answer = await client.post("/generate", {**body, "sampling_params": {"max_new_tokens": 1}})
    meta = answer["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 100, None]]
    assert [each[1] for each in meta["output_top_logprobs"][0]] == [100, 101]
    assert meta["input_token_logprobs"][0] == [None, 1, None]
    _, answer = await client.post("/generate", {"text": "a", "return_logprob": True, "return_text_in_logprobs": True})
    assert answer["meta_info"]["output_token_logprobs"][0] == [-0.5, 100, "Once"]
    assert answer["meta_info"]["input_token_logprobs"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text[1]"),
        ({"input_ids": [1, "a", None]}, "input_ids[1]"),
        ({"input_ids": [10**6]}, "input_ids"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_tokenz": 1}}, "sampling_params.max_tokenz"),
        ({"text": "a", "sampling_params": {"regex": 5}}, "sampling_params.regex"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf"),
        ({"text": ["a", "b"], "sampling_params": [{}, {}, {}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "a", "temperature": 0}, "temperature"),
        ({"text": "a", "prompt": "b"}, "text"),
    ],
)
async def test_what_is_wrong_is_named_as_the_body_has_it(client, body: dict[str, Any], param: str):
    status, answer = await client.post("/generate", body)
    assert status == 400, answer
    assert answer["error"]["param"] == param, answer


async def test_a_body_with_a_prompt_is_answered_in_our_own_form(client):
    _, answer = await client.post("/generate", {"prompt": "a"})
    assert "choices" in answer
